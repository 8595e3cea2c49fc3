"""The openai package with asyncio: many requests at once, one stream left in the middle, the rest unharmed."""

import asyncio
import sys

import openai


async def main(base_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:
        (model,) = (await client.models.list()).data

        async def ask(number: int) -> str:
            answer = await client.chat.completions.create(
                model=model.id,
                messages=[{"role": "user", "content": f"Say the number {number}."}],
                temperature=0,
                max_tokens=20,
            )
            return answer.choices[0].message.content or ""

        async def leave() -> None:
            stream = await client.completions.create(
                model=model.id, prompt="Count: 1, 2,", max_tokens=500, stream=True, extra_body={"ignore_eos": True}
            )
            async with stream:
                async for chunk in stream:
                    if chunk.choices[0].text:
                        break

        answers = await asyncio.gather(*map(ask, range(3, 9)), leave())
        assert all(answers[:-1])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
