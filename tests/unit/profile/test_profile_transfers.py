"""Copies on the virtual GPU in modelled mode: its link is exact, so that a rate can be held against it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from xlm.errors import DeviceError
from xlm.protocol.link import DeviceConfig, SimConfig
from xlm_engine.profile.backend import Backend
from xlm_engine.profile.device import InnerDevice, open_inner
from xlm_engine.profile.sampling import Effort
from xlm_engine.profile.transfers import Link
from xlm_native import Sim

MIB = 1 << 20
LINK_BYTES_PER_S = 4e9
SIM = SimConfig(vram_bytes=128 * MIB, link_bytes_per_s=LINK_BYTES_PER_S, modelled=True)
EFFORT = Effort(1e6, at_least=2, at_most=3)


@pytest.fixture
def device() -> Iterator[InnerDevice]:
    before = Sim().counters().used_bytes
    found = open_inner(DeviceConfig(kind="sim", sim=SIM), 1)
    assert found is not None
    yield found
    assert Sim().counters().used_bytes == before  # every measurement gives its memory back


@pytest.fixture
def link(device: InnerDevice) -> Iterator[Link]:
    made = Link(device.stream, 16 * MIB)
    yield made
    made.close()


def test_no_device_for_the_cpu_alone() -> None:
    assert open_inner(DeviceConfig(kind="none"), 1) is None


def test_a_device_that_is_not_there_is_a_typed_error(device: InnerDevice) -> None:
    assert device.total_bytes == 128 * MIB
    assert device.computes_itself
    with pytest.raises(DeviceError) as error:
        open_inner(DeviceConfig(kind="sim", index=3, sim=SIM), 1)
    assert error.value.code == "device_not_found"


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("memory", ["pinned", "pageable"])
def test_a_copy_takes_at_least_what_the_link_says(link: Link, direction, memory) -> None:  # type: ignore[no-untyped-def]
    assert link.time(direction, memory, 4 * MIB, EFFORT).ns >= 0.99e9 * 4 * MIB / LINK_BYTES_PER_S


def test_the_link_is_busy_in_the_block_and_idle_behind_it(link: Link) -> None:
    for load, directions in (("h2d", (True, False)), ("d2h", (False, True)), ("both", (True, True))):
        Sim().reset_counters()
        with link.busy(load):  # type: ignore[arg-type]
            pass
        after = Sim().counters()
        assert (after.h2d_bytes > 0, after.d2h_bytes > 0) == directions
        assert Sim().counters().n_h2d == after.n_h2d


def test_copies_go_on_while_work_is_done(link: Link) -> None:
    done: list[int] = []
    found = link.time_while("h2d", MIB, lambda: done.append(1))
    assert done == [1]
    assert found.n_samples >= 1
    assert found.ns >= 0.99e9 * MIB / LINK_BYTES_PER_S


def test_a_device_without_room_is_a_typed_error_and_leaves_nothing_running(link: Link) -> None:
    Sim().fail_allocations(0, 1)
    try:
        with pytest.raises(DeviceError) as error, link.busy("h2d"):
            pass
        assert error.value.code == "device_out_of_memory"
    finally:
        Sim().fail_allocations(0, 0)


def test_sizes_beyond_the_device_are_not_tried(link: Link) -> None:
    assert link.fits(16 * MIB)
    assert not link.fits(16 * MIB + 1)


def test_streams_are_of_the_device(device: InnerDevice) -> None:
    stream = device.stream()
    assert isinstance(stream, Backend)
    assert stream.pinned_type is not None
    stream.close()


def test_a_lane_that_cannot_be_made_keeps_no_memory(link: Link) -> None:
    before = Sim().counters().used_bytes
    with pytest.raises(DeviceError) as error:
        link.time("h2d", "pageable", 192 * MIB, EFFORT)
    assert error.value.code == "device_out_of_memory"
    assert Sim().counters().used_bytes == before
    assert link.time("h2d", "pageable", MIB, EFFORT).ns > 0
