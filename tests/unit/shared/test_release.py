"""Which releases work together, and the sentence for those that do not."""

from __future__ import annotations

import pytest

from quire.inference.v1 import release_pb2
from quire.scheduler.v1 import scheduler_pb2
from shared import release
from shared.release import IncompatibleReleaseError, check_release, own_release


@pytest.fixture
def _protocols_2_to_3(monkeypatch: pytest.MonkeyPatch) -> None:
    own = release_pb2.Release(version="0.3.0", protocol=3, oldest_protocol=2)
    monkeypatch.setattr(release, "own_release", lambda: own)


def hello(protocol: int, oldest: int) -> scheduler_pb2.RouterHello:
    other = release_pb2.Release(version="9.9.9", protocol=protocol, oldest_protocol=oldest)
    return scheduler_pb2.RouterHello(release=other)


def test_parts_of_this_release_work_together_and_with_those_that_send_none() -> None:
    check_release(scheduler_pb2.RouterHello(release=own_release()), "the router")
    check_release(scheduler_pb2.RouterHello(), "the router")


@pytest.mark.usefixtures("_protocols_2_to_3")
@pytest.mark.parametrize(("protocol", "oldest"), [(2, 1), (3, 3), (4, 3), (9, 1)])
def test_protocols_that_overlap_work_together(protocol: int, oldest: int) -> None:
    check_release(hello(protocol, oldest), "the router")


@pytest.mark.usefixtures("_protocols_2_to_3")
def test_a_part_that_is_too_old_or_too_new_is_refused_with_both_releases() -> None:
    with pytest.raises(IncompatibleReleaseError) as old:
        check_release(hello(1, 1), "the router")
    assert str(old.value) == (
        "the router runs Quire 9.9.9 (protocols 1 to 1), which does not work with Quire 0.3.0 here (protocols 2 to 3): "
        "upgrade the router"
    )
    with pytest.raises(IncompatibleReleaseError, match=r"9\.9\.9 .* 0\.3\.0 .*: upgrade this part"):
        check_release(hello(5, 4), "the router")
    with pytest.raises(IncompatibleReleaseError, match=r"before 0\.1"):
        check_release(scheduler_pb2.RouterHello(), "the router")
