"""Put ggml's headers of the pinned llama-cpp-python source distribution into build/ggml.

usage: fetch_ggml_headers.py VERSION OUT_DIR [SDIST]

The backend needs private headers of ggml (ggml-backend-impl.h, ggml-impl.h).
They are taken at build time from the same source distribution that
llama-cpp-python was built from, and are never committed.
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

MARK = "vendor/llama.cpp/ggml/"
WANTED = ("include/", "src/")


def download(version: str, folder: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    # pip reads the metadata of a source distribution by running its build backend: scikit-build-core must be installed.
    subprocess.run([*command, "--no-binary", ":all:", "-d", folder, f"llama-cpp-python=={version}"], check=True)
    return next(Path(folder).glob("*.tar.gz"))


def extract(sdist: Path, out: Path) -> int:
    count = 0
    with tarfile.open(sdist) as tar:
        for member in tar:
            _, mark, inner = member.name.partition(MARK)
            is_header = mark and member.isfile() and inner.endswith(".h") and inner.startswith(WANTED)
            if not is_header or inner.count("/") > 1:
                continue
            target = out / inner
            target.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None
            target.write_bytes(source.read())
            count += 1
    return count


def main() -> None:
    version, out = sys.argv[1], Path(sys.argv[2])
    stamp = out / "VERSION"
    if stamp.is_file() and stamp.read_text().strip() == version:
        return
    with tempfile.TemporaryDirectory() as folder:
        sdist = Path(sys.argv[3]) if len(sys.argv) > 3 else download(version, folder)
        count = extract(sdist, out)
    if not (out / "src" / "ggml-backend-impl.h").is_file():
        sys.exit(f"llama-cpp-python {version}: no ggml headers found in its source distribution")
    stamp.write_text(version + "\n")
    print(f"ggml headers of llama-cpp-python {version}: {count} files in {out}")


if __name__ == "__main__":
    main()
