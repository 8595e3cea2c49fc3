"""What lm_eval found on a server with `--dtype float32`, against transformers in float32 on the same file.

Run in the engine's own environment, with the file that `tests/clients/others/lm_eval_items.py` has written.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from tests.acceptance.builtin import read_builtin
from triolet.model.source import resolve_source
from triolet.model.tokenizer import ChatTokenizer, load_tokenizer

MOST_PER_TOKEN = 1e-4
LEAST_GAP = 0.01
"""Where the reference itself hesitates between two tokens, either is greedy."""


class Reference:
    """Likelihoods and greedy answers from whole logits, a text at a time."""

    def __init__(self) -> None:
        source = resolve_source(None)
        self.model: Any = read_builtin(source)
        self.tokenizer: ChatTokenizer = load_tokenizer(source)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    @torch.inference_mode()
    def logprobs(self, token_ids: list[int]) -> torch.Tensor:
        return torch.log_softmax(self.model(torch.tensor([token_ids])).logits[0].float(), dim=-1)

    def likelihood(self, before: list[int], after: list[int]) -> tuple[float, bool, bool]:
        """Of `after`, whether it is the greedy one, and whether that is beyond doubt."""
        rows = self.logprobs([*before, *after])[len(before) - 1 : -1]
        best = rows.topk(2).values
        own = rows[torch.arange(len(after)), torch.tensor(after)]
        gaps = torch.where(own == best[:, 0], best[:, 0] - best[:, 1], best[:, 0] - own)
        return float(own.sum()), bool((own == best[:, 0]).all()), bool((gaps > LEAST_GAP).all())

    def answer(self, prompt: str, until: dict[str, Any]) -> tuple[str, bool]:
        """The greedy answer, and whether it is beyond doubt."""
        token_ids = self.encode(prompt)
        said: list[int] = []
        sure = True
        for _ in range(until["max_gen_toks"]):
            best = self.logprobs([*token_ids, *said])[-1].topk(2)
            sure = sure and float(best.values[0] - best.values[1]) > LEAST_GAP
            if int(best.indices[0]) in self.tokenizer.eos_token_ids:
                break
            said.append(int(best.indices[0]))
        text = self.tokenizer.decode(said)
        cuts = [text.index(stop) for stop in until["until"] if stop in text]
        return text[: min(cuts, default=len(text))], sure


def main(file: str) -> None:
    torch.set_num_threads(1)  # texts are short, and cores may be shared: threads would wait for each other
    found = json.loads(Path(file).read_text())
    reference = Reference()
    most = 0.0
    doubts = 0
    for context, continuation, value, greedy in found["continuations"]:
        kept = context.rstrip()
        before = reference.encode(kept)
        after = reference.encode(context + continuation)[len(before) :]
        expected, is_greedy, sure = reference.likelihood(before, after)
        error = abs(value - expected) / len(after)
        assert error < MOST_PER_TOKEN, (context, continuation, value, expected)
        assert greedy == is_greedy or not sure, (context, continuation, greedy)
        most, doubts = max(most, error), doubts + (not sure)
    for text, value in found["texts"]:
        after = reference.encode(text)
        expected, _, _ = reference.likelihood([reference.tokenizer.bos_token_id or 0], after)
        assert abs(value - expected) / len(after) < MOST_PER_TOKEN, (text, value, expected)
    for prompt, answer in found["answers"]:
        expected_answer, sure = reference.answer(prompt, found["until"])
        assert answer == expected_answer or not sure, (prompt, answer, expected_answer)
        doubts += not sure
    count = sum(len(found[kind]) for kind in ("continuations", "texts", "answers"))
    print(
        f"{count} items of lm_eval, at most {most:.1e} a token from transformers in float32; {doubts} were close calls"
    )
    assert doubts < count / 4


if __name__ == "__main__":
    main(*sys.argv[1:])
