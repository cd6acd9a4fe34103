"""The README's library example, run as printed but for the address of the server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from foreign import message, serving

README = Path(__file__).parent.parent.parent / "README.md"


def look_it_up(body: dict) -> dict:
    """Calls the tool with the city of the question and answers with what it says."""
    if body["messages"][-1]["role"] == "tool":
        return message(f"It is <answer>{body['messages'][-1]['content']}</answer>")
    city = "Oslo" if "Oslo" in body["messages"][-1]["content"] else "Turku"
    return message(None, [("population", json.dumps({"city": city}))])


def test_the_library_example_works_as_printed(tmp_path: Path):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert "http://localhost:8000/v1" in example
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    with serving(look_it_up) as server:
        (tmp_path / "example.py").write_text(example.replace("http://localhost:8000/v1", server.url))
        done = subprocess.run(
            [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=os.environ
        )
        asked = server.bodies[0]
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.rsplit(" ", 3)[1:3] for line in lines] == [["206073", "1.0"], ["717710", "1.0"]]
    assert asked["messages"][0] == {"role": "system", "content": "Answer with a number."}
    assert (tmp_path / "runs" / "cities.run").is_file()
