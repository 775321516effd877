"""A model of transformers without its weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from services.worker.errors import ModelError
from services.worker.models.generic import trial
from services.worker.models.generic.attend import NAME

# What config.json says of the files, and not of the network. Nothing here runs code that a checkpoint brings.
_OF_FILES = {
    "quantization_config", "auto_map", "dtype", "torch_dtype", "architectures", "transformers_version",
    "attn_implementation", "experts_implementation",
}  # fmt: skip

_from_config: Any = AutoModelForCausalLM.from_config  # transformers does not type it


class Skeleton:
    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        """`values`: of config.json. Raises ModelError if transformers cannot make the model."""
        self.where = where
        given = {name: value for name, value in values.items() if name not in _OF_FILES and not name.startswith("_")}
        try:
            self.config: PreTrainedConfig = AutoConfig.for_model(**given)
            with torch.device("meta"):
                self.model: PreTrainedModel = _from_config(
                    self.config, attn_implementation=trial.NAME, dtype=torch.float32
                ).eval()
        except Exception as error:
            if error.args == (trial.NAME,):  # a KeyError: the model looks for its attention in a table of its own
                raise trial.goes_around_interface(where) from error
            raise ModelError(f"{where}: transformers refuses this configuration: {trial.describe(error)}") from error
        if self.config._attn_implementation != trial.NAME:
            raise trial.goes_around_interface(where)
        self.base = self._find_base()
        self._is_scaled_by_length = False
        self._long_ropes: list[tuple[Any, Any]] = []  # rotations by LongRoPE, and the configuration of each
        for module in self.model.modules():
            if hasattr(module, "create_position_ids_from_input_ids"):
                raise ModelError(f"{where}: positions that begin after the padding token's id are not supported")
            self._hold_rotation(module)

    def _hold_rotation(self, module: Any) -> None:
        """Stops transformers from scaling RoPE by the longest sequence of a step, because a token would then depend on
        its neighbours."""
        kinds = getattr(module, "rope_type", None)  # one, or one for each type of layer
        if kinds == "longrope":
            self._long_ropes.append((module, module.config))
            module.config = copy.copy(module.config)
            module.config.rope_parameters = {**module.config.rope_parameters, "rope_type": "default"}
            module.rope_type = "default"
            if hasattr(module, "rope_init_fn"):  # Phi-3.5-MoE calls it in each step
                module.rope_init_fn = lambda _: (module.inv_freq, module.attention_scaling)
        elif isinstance(kinds, dict) and "longrope" in kinds.values():
            raise ModelError(f"{self.where}: RoPE scaling of type longrope for some layers is not supported")
        elif "dynamic" in (kinds.values() if isinstance(kinds, dict) else [kinds]):
            self._is_scaled_by_length = True
            # The module keeps the rotation that it has for the original positions.
            module.rope_type = dict.fromkeys(kinds, "default") if isinstance(kinds, dict) else "default"

    def choose_frequencies(self, max_positions: int) -> None:
        """Computes LongRoPE's frequencies for sequences of up to `max_positions` tokens. See `RopeConfig.cos_sin`."""
        for module, config in self._long_ropes:
            parameters = config.rope_parameters
            frequencies, scale = ROPE_INIT_FUNCTIONS["longrope"](config, module.inv_freq.device, max_positions)
            is_long = max_positions > parameters["original_max_position_embeddings"]
            module.inv_freq.copy_(frequencies)
            # Phi-3.5-MoE has a scale for each of the two.
            module.attention_scaling = parameters.get("long_mscale" if is_long else "short_mscale") or scale

    def _find_base(self) -> PreTrainedModel:
        """Returns the decoder without its output layer."""
        model = self.model
        for inner in (getattr(model, model.base_model_prefix, None), getattr(model, "model", None)):
            if isinstance(inner, PreTrainedModel) and inner is not model:
                return inner
        raise ModelError(f"{self.where}: {type(model).__name__} does not keep its decoder apart from its output layer")

    @property
    def is_stateful(self) -> bool:
        return bool(self.model._is_stateful)

    def wide_names(self) -> set[str]:
        """Returns the stored tensors that transformers keeps in float32 in a model of another type. The biases by which
        routers choose experts are buffers, and not all models name them."""
        model: Any = self.model
        kept = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
        parameters = {name for name, _ in model.named_parameters()}
        return {
            name
            for name in model.state_dict()
            if any(f".{part}." in f".{name}." for part in kept) or (name not in parameters and name.endswith("bias"))
        }

    @property
    def is_tied(self) -> bool:
        model: Any = self.model
        embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
        return head is not None and head.weight is embeddings.weight

    @property
    def max_positions(self) -> int:
        """Tokens in the longest sequence."""
        config = self.config
        longest = getattr(config, "max_position_embeddings", None)
        if self._is_scaled_by_length:
            longest = config.rope_parameters.get("original_max_position_embeddings", longest)
        if not isinstance(longest, int):
            raise ModelError(f"{self.where} does not say how long a sequence can be (max_position_embeddings)")
        return longest

    def try_out(self) -> trial.Trial:
        """See `trial.run`. Leaves the model as it was, but for its experts, which no longer compute."""
        choices = {name: _Choice() for name, module in self.model.named_modules() if is_experts(module)}
        for name, choice in choices.items():
            self.model.get_submodule(name).forward = choice
        tried = trial.run(self.base, self.where)
        (prefix,) = (name for name, module in self.model.named_modules() if module is self.base)
        return replace(
            tried,
            matrices=frozenset(f"{prefix}.{name}" for name in tried.matrices),
            joined=tuple(tuple(f"{prefix}.{name}" for name in group) for group in tried.joined),
            num_chosen={name: choice.num_chosen for name, choice in choices.items()},
        )

    def attend_on_pages(self) -> None:
        """Chooses the attention of `attend.py`."""
        self.model.set_attn_implementation(NAME)

    def stored_names(self) -> dict[str, str]:
        """Returns the name with which a checkpoint stores each parameter and each buffer that it stores, by its name in
        the model. Leaves out those that it stores in parts or together with others."""
        own = self.model.state_dict()
        stored = {id(tensor): name for name, tensor in self._reverted(own).items()}
        names = {name: stored[id(tensor)] for name, tensor in own.items() if id(tensor) in stored}
        tied: dict[str, str] = getattr(self.model, "all_tied_weights_keys", {})
        return names | {name: names[other] for name, other in tied.items() if other in names}

    def stored_parts(self, name: str) -> dict[str, Tensor]:
        """Returns the tensors, without data, in which a checkpoint stores the tensor `name`."""
        return self._reverted({name: self.model.get_parameter(name).detach()})

    def _reverted(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Undoes what transformers does to the tensors of a checkpoint when it loads them."""
        model: Any = self.model
        if not hasattr(model, "_weight_conversions"):  # where revert_weight_conversion looks for them
            conversions = get_model_conversion_mapping(model, add_legacy=False)
            model._weight_conversions = [one for one in conversions if not isinstance(one, PrefixChange)]
        reverted: dict[str, Tensor] = revert_weight_conversion(model, dict(tensors))
        return reverted


def is_experts(module: nn.Module) -> bool:
    """Whether transformers' experts interface can replace this module's computation."""
    # One of the attributes that the interface sets in every version of transformers that Quire supports.
    return hasattr(module, "is_concatenated")


class _Choice:
    """Stands for a mixture of experts. Computes nothing, and notes how many experts a token takes."""

    num_chosen = 0

    def __call__(self, hidden_states: Tensor, expert_ids: Tensor, *_: object, **__: object) -> Tensor:
        self.num_chosen = expert_ids.shape[-1]
        return torch.empty_like(hidden_states)
