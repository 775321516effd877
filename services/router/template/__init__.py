"""Chat templates: rendering, probing, and isolated processes for templates that requests contain."""

from services.router.template.arguments import parsed_arguments
from services.router.template.chat_template import (
    ChatTemplate,
    from_tokenizer_config,
    import_renderer,
    no_chat_template,
    special_tokens,
    text_of,
)
from services.router.template.foreign import ForeignTemplates, check_size
from services.router.template.messages import num_forms
from services.router.template.probe import SHOWS_NOTHING, TemplateTraits

__all__ = [
    "SHOWS_NOTHING",
    "ChatTemplate",
    "ForeignTemplates",
    "TemplateTraits",
    "check_size",
    "from_tokenizer_config",
    "import_renderer",
    "no_chat_template",
    "num_forms",
    "parsed_arguments",
    "special_tokens",
    "text_of",
]
