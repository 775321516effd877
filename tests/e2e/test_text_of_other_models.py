"""A model that takes images, too, as its users meet it: it answers text, and refuses images."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import serving
from tests.unit.worker.test_text_part import write_llava


def test_text_is_answered_and_an_image_is_refused_by_name(tmp_path: Path) -> None:
    write_llava(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}"
    )
    with serving(str(tmp_path), model=tmp_path.name) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        part = {"type": "text", "text": "a"}
        answer = client.chat.completions.create(
            model=server.model,
            max_tokens=3,
            messages=[{"role": "user", "content": [part]}],  # type: ignore[misc,list-item]
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0
        image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
        with pytest.raises(openai.BadRequestError) as refusal:
            client.chat.completions.create(
                model=server.model,
                messages=[{"role": "user", "content": [part, image]}],  # type: ignore[misc,list-item]
            )
        assert refusal.value.param == "messages[0].content[1].type"
        assert "'image_url'. This model takes only text parts." in refusal.value.message
