"""The journal of fake machines is in their own folder, whatever the user has set."""

from __future__ import annotations

import pytest

from torchyard.machine.quieting.journal import JOURNAL_VARIABLE


@pytest.fixture(autouse=True)
def own_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JOURNAL_VARIABLE, raising=False)
