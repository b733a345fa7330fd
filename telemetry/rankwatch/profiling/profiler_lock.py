"""Ends an open window when the user starts torch's profiler.

torch allows one profiler at a time: a second one raises "Profiler is already enabled" in the user's script. So the
functions that ``torch.profiler`` calls are wrapped in ``torch.autograd.profiler``: before the user's profiler is
prepared or enabled, the open window is ended. No window starts until the user's profiler is disabled, because one
between "prepared" and "enabled" would undo the preparation.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

BEGINNINGS: Final = ("_prepare_profiler", "_enable_profiler")
END: Final = "_disable_profiler"


class ProfilerGuard:
    """Wraps the names in ``module`` while it is installed; ``end_window`` is called on the user's thread and is quick.

    Raises:
        AttributeError: this torch release has no such functions.
    """

    def __init__(self, module: ModuleType, end_window: Callable[[], None]) -> None:
        self._module = module
        self._end_window = end_window
        self._originals: dict[str, Any] = {name: getattr(module, name) for name in (*BEGINNINGS, END)}
        self._ours: dict[str, Any] = {name: self._beginning(original) for name, original in self._originals.items()}
        self._ours[END] = self._ending(self._originals[END])
        self.user_profiles = False
        """Whether the user's profiler is prepared or enabled."""

    def install(self) -> None:
        """Replace the functions of torch."""
        for name, wrapped in self._ours.items():
            setattr(self._module, name, wrapped)

    def remove(self) -> None:
        """Restore the originals, except those that others have wrapped meanwhile."""
        for name, original in self._originals.items():
            if getattr(self._module, name, None) is self._ours[name]:
                setattr(self._module, name, original)

    def _beginning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*args: Any, **kwargs: Any) -> Any:
            self.user_profiles = True
            self._end_window()
            try:
                return original(*args, **kwargs)
            except BaseException:
                self.user_profiles = False
                raise

        return begin

    def _ending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                self.user_profiles = False

        return end
