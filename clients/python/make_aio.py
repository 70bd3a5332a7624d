"""Makes `aio_methods.py` of `methods.py`; a test holds the one to the other."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parent / "src/bsdq"
HEAD = (
    '"""The calls of an asyncio client: made of `methods.py` by `make_aio.py`, not to be edited."""'
)


def made(source: str) -> str:
    """The asyncio form of the methods."""
    rest = source.split('"""', 2)[2]
    rest = rest.replace("class Methods:", "class AsyncMethods:")
    rest = re.sub(r"^    def ", "    async def ", rest, flags=re.M)
    rest = rest.replace("return self._", "return await self._")
    return HEAD + rest


if __name__ == "__main__":
    text = made((SOURCE / "methods.py").read_text())
    (SOURCE / "aio_methods.py").write_text(text)
