"""Hooks in torch that report to :class:`~rankwatch.integrations.autorun.training_loop.TrainingLoop`.

==================  ================================================================================================
optimizers          torch's global step hooks
backward            wrapper of ``torch.autograd.backward``, which ``Tensor.backward`` calls
batches             wrapper of ``next()`` of a data loader's iterator
saves               wrappers of ``torch.save``, ``torch.distributed.checkpoint.save``, ``safetensors.torch.save_file``
forward             one global module hook, registered only while no module runs: the outermost module removes it until
                    it returns. So inner modules are not slowed down, and compiled ones do not see it
==================  ================================================================================================

Other threads than the main one are ignored. While torch.compile traces, the wrappers only call the wrapped functions.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final

from rankwatch.integrations.autorun.errors import between, count_error, report
from rankwatch.integrations.autorun.training_loop import TrainingLoop

SAVES: Final = (
    ("torch", "save"),
    ("torch.serialization", "save"),
    ("torch.distributed.checkpoint", "save"),
    ("torch.distributed.checkpoint.state_dict_saver", "save"),
    ("safetensors.torch", "save_file"),
)
"""Functions that write a checkpoint, under each name by which they are called."""
COMPILE_WARNING: Final = r"Using `torch\.compile\(module\)` when there are global hooks"
"""torch warns that global hooks are called again for a compiled module; this one is removed by then."""

_MARK: Final = "__rankwatch_plain__"
_get_ident = threading.get_ident
_hooks: _Hooks | None = None


def install(torch: Any, loop: TrainingLoop) -> None:
    """Install the hooks in torch, which is imported. Idempotent."""
    global _hooks
    if _hooks is None:
        _hooks = hooks = _Hooks(torch, loop)
        parts = hooks.hook_optimizers, hooks.hook_backward, hooks.hook_loaders, hooks.hook_modules
        for part in parts:
            try:
                part()
            except Exception:  # noqa: BLE001 - another version of torch; the other hooks still work
                count_error()
        os.register_at_fork(after_in_child=hooks.disarm)
        hook_saves()


def hook_saves() -> None:
    """Wrap the functions that save checkpoints, in the modules that are imported by now."""
    for name, function in SAVES:
        plain = getattr(sys.modules.get(name), function, None)
        if plain is not None and _hooks is not None and not hasattr(plain, _MARK):
            setattr(sys.modules[name], function, _hooks.wrap_save(plain))


class _Hooks:
    """The hooks; each reports to the loop and never raises."""

    def __init__(self, torch: Any, loop: TrainingLoop) -> None:
        self._torch, self._loop = torch, loop
        self._thread = threading.main_thread().ident
        self._is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        self._gradients: Callable[[], bool] = torch.is_grad_enabled
        self._armed: dict[int, Any] = {}
        self._key = 0
        """torch's table of global hooks, and the key of this one."""
        self._forward_handle: Any = None
        self._outermost = 0
        """Id of the module that runs."""
        self._scripted: Any = getattr(torch.jit, "ScriptModule", ())
        self._first_step_known = False
        self._live: dict[int, weakref.ref[Any]] = {}
        """Optimizers by id."""
        self._saves: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._forward_hook = self._make_forward_hook()
        self._forward_end_hook = self._make_forward_end_hook()
        warnings.filterwarnings("ignore", message=COMPILE_WARNING, category=UserWarning)

    # Forward ----------------------------------------------------------------------------------------------------------

    def hook_modules(self) -> None:
        """Register the global hook, armed."""
        handle = self._torch.nn.modules.module.register_module_forward_pre_hook(self._forward_hook)
        self._armed, self._key = handle.hooks_dict_ref(), handle.id

    def arm(self) -> None:
        """Treat the next module that is called as an outermost one."""
        # Always under the same key: traces of torch.compile are guarded by the table of hooks.
        self._armed[self._key] = self._forward_hook

    def disarm(self) -> bool:
        """Ignore module calls; return whether the hook was armed."""
        return self._armed.pop(self._key, None) is not None

    def _make_forward_hook(self) -> Callable[[Any, Any], None]:
        is_compiling, thread, scripted = self._is_compiling, self._thread, self._scripted

        def rankwatch_forward(module: Any, inputs: Any) -> None:  # noqa: ARG001
            if is_compiling() or _get_ident() != thread or isinstance(module, scripted):
                return
            self._forward_begins(module)

        return rankwatch_forward

    def _forward_begins(self, module: Any) -> None:
        try:
            self._end_forward()  # one ended by a KeyboardInterrupt, for which torch calls no hook
            self.disarm()
            # A model in eval mode, or a loss alone, may run with gradients outside of training.
            training = self._gradients() and module.training and bool(module._parameters or module._modules)
            if training:
                self._find_first_step()
            # Not a bound method: a module that is copied while it runs copies the hook, but must not copy this object.
            self._forward_handle = module.register_forward_hook(self._forward_end_hook, always_call=True)
            self._outermost = id(module)
            self._loop.forward_begins(self._outermost, training=training)
        except Exception:  # noqa: BLE001 - boundary to training code
            count_error()

    def _make_forward_end_hook(self) -> Callable[[Any, Any, Any], None]:
        def rankwatch_forward_end(module: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
            if id(module) != self._outermost:
                return
            report(self._end_forward)

        return rankwatch_forward_end

    def _end_forward(self) -> None:
        handle, self._forward_handle = self._forward_handle, None
        if handle is not None:
            handle.remove()
            self._loop.forward_ended(self._outermost)
            self.arm()

    # Backward, batches, saves -----------------------------------------------------------------------------------------

    def hook_backward(self) -> None:
        """Replace the function that ``Tensor.backward`` calls."""
        autograd = self._torch.autograd
        plain, is_compiling, thread = autograd.backward, self._is_compiling, self._thread

        @functools.wraps(plain)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or _get_ident() != thread:
                return plain(*args, **kwargs)
            self._find_first_step()
            armed = self.disarm()  # activation checkpointing calls modules again
            try:
                call = functools.partial(plain, *args, **kwargs)
                return between(self._loop.backward_begins, call, self._loop.backward_ended)
            finally:
                if armed:
                    self.arm()

        autograd.backward = backward

    def hook_loaders(self) -> None:
        """Time ``next()`` of all data loader iterators."""
        iterators = self._torch.utils.data.dataloader._BaseDataLoaderIter
        plain, thread = iterators.__next__, self._thread

        @functools.wraps(plain)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            if _get_ident() != thread:
                return plain(iterator)
            key = id(getattr(iterator, "_dataset", iterator))
            self.disarm()  # preparing a batch may call modules
            report(self._loop.fetch_begins, key)
            done = False
            try:
                batch = plain(iterator)
                done = True
                return batch
            finally:
                report(self._loop.fetch_ended, exhausted=not done)
                self.arm()

        iterators.__next__ = __next__

    def wrap_save(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return the wrapper of a function that saves, the same one for the same function."""
        if plain in self._saves:
            return self._saves[plain]
        thread = self._thread

        @functools.wraps(plain)
        def save(*args: Any, **kwargs: Any) -> Any:
            if _get_ident() != thread:
                return plain(*args, **kwargs)
            report(self._end_forward)  # a module must not be saved with its hook
            return between(self._loop.save_begins, functools.partial(plain, *args, **kwargs), self._loop.save_ended)

        setattr(save, _MARK, plain)
        self._saves[plain] = save
        return save

    # Optimizers -------------------------------------------------------------------------------------------------------

    def hook_optimizers(self) -> None:
        """Hook the construction and the steps of all optimizers."""
        optimizer: Any = sys.modules["torch.optim.optimizer"]  # not an attribute of torch.optim
        optimizer.register_optimizer_step_pre_hook(self._step_begins)
        optimizer.register_optimizer_step_post_hook(self._step_ended)
        plain = optimizer.Optimizer.__init__

        @functools.wraps(plain)
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            plain(made, *args, **kwargs)
            report(self._track, made)

        optimizer.Optimizer.__init__ = __init__

    def _track(self, optimizer: Any) -> None:
        key = id(optimizer)
        if key in self._live:
            return
        loop, live = self._loop, self._live

        def forget(reference: Any) -> None:
            if live.get(key) is reference:
                del live[key]
                loop.optimizers.remove(key)

        live[key] = weakref.ref(optimizer, forget)
        loop.optimizers.add(key)

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._is_compiling() or _get_ident() != self._thread:
            return
        try:
            self._track(optimizer)
            self._find_first_step()
            self._loop.optimizer_begins(id(optimizer))
        except Exception:  # noqa: BLE001 - boundary to training code
            count_error()

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if self._is_compiling() or _get_ident() != self._thread:
            return
        report(self._loop.optimizer_ended, id(optimizer))

    def _find_first_step(self) -> None:
        """Set the first step from the optimizers' state, which a checkpoint may have restored."""
        if self._first_step_known or not self._live:
            return
        self._first_step_known = True
        try:
            steps = [_steps_of(found) for reference in self._live.values() if (found := reference()) is not None]
            # An iteration is complete when each has stepped, so the smallest count is that of iterations.
            self._loop.first_step = min(filter(None, steps), default=None)
        except Exception:  # noqa: BLE001 - the state of an optimizer has no fixed layout
            count_error()


def _steps_of(optimizer: Any) -> int:
    """Return the largest step count of its parameters, reading CPU values only, without a device synchronization."""
    found = 0
    for state in optimizer.state.values():
        step = state.get("step") if isinstance(state, dict) else None
        if step is not None and getattr(getattr(step, "device", None), "type", "cpu") == "cpu":
            found = max(found, int(step))
    return found
