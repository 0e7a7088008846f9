"""`python -m docs.execute` runs the notebooks, against a service of their own, and stores their
output. The output of a cell is its printed text and the value of its last expression: as text, and
as a picture or a table if it is one. Jupyter does the same, with sixty packages more."""

import ast
import base64
import io
import json
import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from mptlab import Client, serve

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))

Json = dict[str, Any]


def main() -> None:
    with TemporaryDirectory() as folder:
        os.environ |= variables(Path(folder))
        with service(Path(folder)), chdir(folder):
            for file in NOTEBOOKS:
                notebook = json.loads(file.read_text())
                execute(notebook)
                file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def variables(folder: Path) -> dict[str, str]:
    """Environment variables with which notebooks find the service."""
    url = f"http://127.0.0.1:{serve.free_port()}"
    return {"MPT_URL": url, "MPT_STORE": f"{folder}/store", "MPT_MODELS_DIR": f"{folder}/models"}


@contextmanager
def service(folder: Path) -> Iterator[None]:
    """The embedded service, while the block runs."""
    (folder / "models").mkdir()
    port = int(os.environ["MPT_URL"].rpartition(":")[2])
    with serve.embedded(folder / "store", port, folder / "log"):
        with Client() as client:
            serve.wait_until(client.is_ready)
        yield


def execute(notebook: Json) -> None:
    """Run the cells and store their outputs. Errors of the cells are raised."""
    names: Json = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(code, 1):
        printed, value = _run("".join(cell["source"]), names)
        outputs: list[Json] = []
        if printed:
            outputs.append({"output_type": "stream", "name": "stdout", "text": printed})
        if value is not None:
            result = {"data": _shown(value), "metadata": {}, "execution_count": count}
            outputs.append({"output_type": "execute_result", **result})
        cell |= {"execution_count": count, "outputs": outputs}


def _run(source: str, names: Json) -> tuple[str, Any]:
    """Return the output of a cell and the value of its last expression."""
    *statements, last = ast.parse(source).body
    final = ast.Expression(last.value) if isinstance(last, ast.Expr) else None
    if final is None:
        statements.append(last)
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(statements, []), "<cell>", "exec"), names)
        value = None if final is None else eval(compile(final, "<cell>", "eval"), names)
    return printed.getvalue(), value


def _shown(value: Any) -> Json:
    shown = {"text/plain": repr(value)}
    if hasattr(value, "_repr_png_"):
        shown["image/png"] = base64.b64encode(_small(value._repr_png_())).decode()
    if html := getattr(value, "_repr_html_", lambda: None)():
        shown["text/html"] = html
    return shown


def _small(png: bytes) -> bytes:
    """Return the picture in a hundred colours, with a third of the bytes."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(100).save(file, "png", optimize=True)
    return file.getvalue()


if __name__ == "__main__":
    main()
