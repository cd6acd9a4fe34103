"""``progress="auto"`` in a notebook's kernel: one output of the cell, replaced by newer states; no widget."""

from __future__ import annotations

import nbformat
import pytest
from foreign import capital_cities, serving
from nbclient import NotebookClient

CELL = """
import trunkline as tl
tasks = [tl.Task.ask(f"Capital of {name}?", "x") for name in ("France", "<b>Japan</b>")]
run = tl.run(tl.Agent(model="m"), tasks, llm=tl.LLM(URL), workers=WORKERS, progress="auto")
run
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_state_is_an_output_that_is_replaced_and_the_run_shows_itself(workers: int):
    with serving(capital_cities) as server:
        code = CELL.replace("URL", repr(server.url)).replace("WORKERS", str(workers))
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
        NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    shown, result = [out for out in notebook.cells[0].outputs if out["output_type"] != "stream"]
    assert shown["output_type"] == "display_data"
    assert shown["data"]["text/plain"].startswith("2/2 tasks")
    assert shown["data"]["text/html"] == f"<pre>{shown['data']['text/plain']}</pre>"
    assert set(shown["data"]) == {"text/plain", "text/html"}
    assert result["output_type"] == "execute_result"
    assert "2 of 2 finished" in result["data"]["text/html"]
