#!/usr/bin/env python3
"""Gives every asset of the package its .meta file. An asset without one would get a new GUID in each project.

    python3 metas.py            writes those that are missing
    python3 metas.py --check    lists those that are missing, stale or double; exit code 1 if there are any

A GUID, once written, is never changed: scenes refer to scripts by it.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
TAIL = "  externalObjects: {}\n  userData:\n  assetBundleName:\n  assetBundleVariant:\n"
MONO = """MonoImporter:
  externalObjects: {}
  serializedVersion: 2
  defaultReferences: []
  executionOrder: 0
  icon: {instanceID: 0}
  userData:
  assetBundleName:
  assetBundleVariant:
"""
IMPORTERS = {
    ".cs": MONO,
    ".asmdef": "AssemblyDefinitionImporter:\n" + TAIL,
    ".md": "TextScriptImporter:\n" + TAIL,
    "package.json": "PackageManifestImporter:\n" + TAIL,
    "folder": "DefaultImporter:\n" + TAIL,
}
NATIVE = """PluginImporter:
  externalObjects: {{}}
  serializedVersion: 2
  iconMap: {{}}
  executionOrder: {{}}
  defineConstraints: []
  isPreloaded: 0
  isOverridable: 0
  isExplicitlyReferenced: 0
  validateReferences: 1
  platformData:
  - first:
      Any:
    second:
      enabled: 0
      settings: {{}}
  - first:
      Editor: Editor
    second:
      enabled: 1
      settings:
        CPU: {cpu}
        DefaultValueInitialized: true
        OS: {os}
  - first:
      Standalone: {target}
    second:
      enabled: 1
      settings:
        CPU: {cpu}
  userData:
  assetBundleName:
  assetBundleVariant:
"""
# file name ending -> what Unity calls the platform
PLATFORMS = {
    ".so": {"cpu": "x86_64", "os": "Linux", "target": "Linux64"},
    ".dll": {"cpu": "x86_64", "os": "Windows", "target": "Win64"},
    ".dylib": {"cpu": "AnyCPU", "os": "OSX", "target": "OSXUniversal"},
}


def assets(package: Path) -> Iterator[Path]:
    """Files and folders that Unity imports: nothing hidden, nothing whose name ends with ~, no .meta itself."""
    for path in sorted(package.rglob("*")):
        parts = path.relative_to(package).parts
        hidden = any(part.startswith(".") or part.endswith("~") for part in parts)
        if not hidden and path.suffix != ".meta" and "__pycache__" not in parts:
            yield path


def meta_of(path: Path) -> Path:
    return path.with_name(path.name + ".meta")


def importer(path: Path) -> str:
    if path.is_dir():
        return "folderAsset: yes\n" + IMPORTERS["folder"]
    if path.suffix in PLATFORMS:
        return NATIVE.format(**PLATFORMS[path.suffix])
    return IMPORTERS.get(path.name) or IMPORTERS[path.suffix]


def text(path: Path, package: Path) -> str:
    name = f"com.xlm.sdk/{path.relative_to(package).as_posix()}"
    guid = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"fileFormatVersion: 2\nguid: {guid}\n{importer(path)}"


def write_missing(package: Path) -> None:
    for path in assets(package):
        if not meta_of(path).exists():
            meta_of(path).write_text(text(path, package), newline="\n")


def problems(package: Path) -> list[str]:
    """What is wrong, one line each."""
    wanted = {meta_of(path) for path in assets(package)}
    present = {path for path in package.rglob("*.meta") if "~" not in str(path.relative_to(package))}
    found = [f"missing: {path.relative_to(package)}" for path in sorted(wanted - present)]
    found += [f"without its asset: {path.relative_to(package)}" for path in sorted(present - wanted)]
    seen: dict[str, Path] = {}
    for path in sorted(present):
        guid = re.search(r"^guid: ([0-9a-f]{32})$", path.read_text(), re.MULTILINE)
        if guid is None:
            found.append(f"without a GUID: {path.relative_to(package)}")
        elif guid[1] in seen:
            found.append(f"same GUID: {path.relative_to(package)} and {seen[guid[1]].relative_to(package)}")
        else:
            seen[guid[1]] = path
    return found


def main() -> int:
    if "--check" not in sys.argv[1:]:
        write_missing(PACKAGE)
        return 0
    found = problems(PACKAGE)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
