"""Detection looks at files and NVML only, and never raises."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from nvml_fakes import FakePynvml

from xlm_broker.devices import detect, library_name, llama_library_folder
from xlm_broker.nvml import Nvml, NvmlError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="reads /sys")


def no_driver() -> Nvml:
    raise NvmlError("no driver")


def drm(root: Path, *drivers: str) -> Path:
    for number, driver in enumerate(drivers):
        target = root / "drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        card = root / "drm" / f"renderD{128 + number}" / "device"
        card.mkdir(parents=True)
        (card / "driver").symlink_to(target)
    return root / "drm"


def test_nothing(tmp_path: Path) -> None:
    found = detect({}, nvml_loader=no_driver, drm_root=tmp_path, search=[tmp_path / "none"])
    assert found.best()[0] == "sim"
    assert found.nvidia_error == "no driver"
    assert found.problems == []


def test_cuda(tmp_path: Path) -> None:
    library = tmp_path / "lib" / library_name("cuda")
    library.parent.mkdir()
    library.touch()
    fake = FakePynvml(total=8 << 30, free=6 << 30)
    found = detect({}, nvml_loader=lambda: Nvml(fake), drm_root=tmp_path, search=[tmp_path])
    assert found.best()[0] == "cuda"
    assert found.cuda_library == library
    assert found.nvidia[0].total_bytes == 8 << 30
    assert fake.shut_down


def test_a_card_whose_memory_is_not_supported_is_still_a_card(tmp_path: Path) -> None:
    found = detect({}, nvml_loader=lambda: Nvml(FakePynvml(error="Not Supported")), drm_root=tmp_path, search=[])
    assert [gpu.total_bytes for gpu in found.nvidia] == [None]


@pytest.mark.parametrize(
    ("drivers", "kind"), [(("amdgpu",), "vulkan"), (("virtio-pci",), "sim"), (("vgem", "i915"), "vulkan")]
)
def test_vulkan_needs_a_real_gpu(tmp_path: Path, drivers: tuple[str, ...], kind: str) -> None:
    library = tmp_path / "vk.so"
    library.touch()
    found = detect(
        {"XLM_VULKAN_LIBRARY": str(library)}, nvml_loader=no_driver, drm_root=drm(tmp_path, *drivers), search=[]
    )
    assert found.best()[0] == kind


def test_a_named_library_that_is_missing_is_a_problem_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / library_name("cuda")).touch()
    found = detect({"XLM_CUDA_LIBRARY": "/no/such.so"}, nvml_loader=no_driver, drm_root=tmp_path, search=[tmp_path])
    assert found.cuda_library is None
    assert "/no/such.so" in found.problems[0]


def test_llama_cpp_is_found_without_being_loaded() -> None:
    before = "llama_cpp" in sys.modules
    llama_library_folder()
    assert ("llama_cpp" in sys.modules) == before


@pytest.mark.parametrize(
    ("platform", "name"),
    [("linux", "libggml-cuda.so"), ("darwin", "libggml-cuda.dylib"), ("win32", "ggml-cuda.dll")],
)
def test_library_names(platform: str, name: str) -> None:
    assert library_name("cuda", platform) == name
