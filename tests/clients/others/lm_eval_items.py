"""lm_eval's `local-completions` model with nothing but the URL: likelihoods of continuations and texts, and answers.

The tokens come from the server too (its remote tokenizer). What it found is written to a file for
`tests/clients/values/`, which computes the same with another program.
"""

import json
import sys
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

CHOICES = {
    "The capital of France is": (" Paris", " Rome", " a small village in the north of Sweden"),
    "Two plus two is": (" four", " five", " twenty-two, as everybody knows"),
    "Question: Can a fish swim?\nAnswer:": (" yes", " no", " It depends on the weather."),
    "The opposite of hot is": (" cold", " warm", " purple"),
    "def add(a, b):\n    return": (" a + b", " a - b", "\n\n"),
    "Water boils at a temperature of 100 degrees": (" Celsius", " Fahrenheit", " and freezes at 0"),
    "Roses are red,\nviolets are": (" blue", " red", " made of glass"),
    "Guten Morgen heißt auf Englisch": (" good morning", " good night", " 🌍🌍"),
    "1, 2, 3, 4,": (" 5", " 6", " 4"),
    "She opened the door ": ("and went in.", "and flew to the moon.", "the door."),
    "Die Hauptstadt von Österreich ist": (" Wien", " Salzburg", " Graz"),
    "The sun rises in the": (" east", " west", " evening"),
}
"""Contexts, each with its continuations; one ends in a space, which belongs to what follows."""

TEXTS = ("Once upon a time, in a village by the sea, there lived a cat.", "To be, or not to be: that is the question.")

UNTIL: dict[str, Any] = {"until": ["\n", "."], "max_gen_toks": 16, "temperature": 0}
PROMPTS = ("The capital of Italy is", "The first three primes are", "My favourite colour is", "def quicksort(items):\n")


def instances(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=given, idx=index)  # type: ignore[arg-type]
        for index, given in enumerate(arguments)
    ]


def main(base_url: str, file: str) -> None:
    results: list[dict[str, Any]] = []
    for concurrent, batch in ((1, 8), (4, 1)):
        model = LocalCompletionsAPI(
            base_url=f"{base_url}/completions", num_concurrent=concurrent, batch_size=batch, max_retries=1
        )
        assert model.tokenizer_backend == "remote"
        pairs = [(context, each) for context, continuations in CHOICES.items() for each in continuations]
        likelihoods = model.loglikelihood(instances("loglikelihood", list(pairs)))
        rolling = model.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,) for text in TEXTS]))
        said = model.generate_until(instances("generate_until", [(prompt, dict(UNTIL)) for prompt in PROMPTS]))
        assert len(likelihoods) == len(pairs) == 36
        results.append(
            {
                "continuations": [[*pair, *likelihood] for pair, likelihood in zip(pairs, likelihoods, strict=True)],
                "texts": [list(each) for each in zip(TEXTS, rolling, strict=True)],
                "answers": [list(each) for each in zip(PROMPTS, said, strict=True)],
                "until": UNTIL,
            }
        )
    assert results[0] == results[1], "eight at a time in a request, or four requests at a time: the same numbers"
    with open(file, "w") as out:
        json.dump(results[0], out)


if __name__ == "__main__":
    main(*sys.argv[1:])
