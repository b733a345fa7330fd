"""A file that holds the address of the launchers' store: one launcher writes it, the others find it."""

from __future__ import annotations

from pathlib import Path

from rankwatch_launcher.coordination.store_file import MasterAddress, StoreFile

A, B = MasterAddress("a", 1000), MasterAddress("b", 2000)


def files(folder: Path, run_id: str = "job") -> StoreFile:
    return StoreFile(str(folder / "file"), run_id)


def test_the_first_address_holds_and_another_job_has_its_own(tmp_path: Path) -> None:
    one, two = files(tmp_path), files(tmp_path)
    assert one.address() is None
    assert one.claim(None, A)
    assert not two.claim(None, B)
    assert two.address() == A
    assert files(tmp_path, "other").address() is None


def test_an_address_of_an_earlier_launch_is_replaced_by_one_launcher_only(tmp_path: Path) -> None:
    files(tmp_path).claim(None, A)
    one, two = files(tmp_path), files(tmp_path)
    assert one.claim(A, B)
    assert not two.claim(A, MasterAddress("c", 3000))
    assert two.address() == B


def test_who_wrote_the_address_withdraws_it_and_no_other(tmp_path: Path) -> None:
    one, two = files(tmp_path), files(tmp_path)
    one.claim(None, A)
    two.withdraw()
    assert two.address() == A
    one.withdraw()
    assert two.address() is None
    assert two.claim(None, B)
