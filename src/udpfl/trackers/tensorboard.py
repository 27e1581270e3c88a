"""TensorBoard: event files inside the run folder, read with `tensorboard --logdir runs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from udpfl.config import dump
from udpfl.trackers.base import Tracker, imported

if TYPE_CHECKING:
    from udpfl.config import Config
    from udpfl.federation import Run


class TensorBoard(Tracker):
    """Writes to `folder`, or to "tensorboard" in the run folder.

    A resumed run goes on in the same folder, and the rounds it repeats replace the ones before.

    Args:
        folder: Where the event files go; "tensorboard" in the run folder if left out.

    Raises:
        MissingExtra: TensorBoard is not installed.

    Example:
        >>> from udpfl.trackers import TensorBoard
        >>> TensorBoard("events").name
        'TensorBoard'
    """

    name = "TensorBoard"
    _keeps_private = True  # files on this machine, as the run folder itself

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__()
        imported("tensorboard", "tensorboard")
        self._make = imported("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._chosen = None if folder is None else Path(folder)
        self._writer: Any = None

    def _begin(self, config: Config, folder: Path, stamp: str) -> None:
        self._writer = None
        self._stamped = stamp
        self._folder = self._chosen or folder / "tensorboard"
        self._config = dump(config)

    def _opened(self, round_: int) -> Any:
        """The writer, made when the first round to write is known: what follows it is outdated."""
        if self._writer is None:
            again = any(self._folder.glob("events.*"))
            self._writer = self._make(str(self._folder), purge_step=round_ if again else None)
            if not again:
                self._writer.add_text("config", f"```toml\n{self._config}```", 0)
            self._stamp(round_ - 1, self._stamped)
        return self._writer

    def _stamp(self, round_: int, stamp: str) -> None:
        self._stamped = stamp
        if self._writer is not None:  # else it is written with the first figures
            self._writer.add_text("privacy/statement", stamp, round_)

    def _write(self, round_: int, values: dict[str, float]) -> None:
        writer = self._opened(round_)
        for name, value in values.items():
            writer.add_scalar(name, value, round_)
        writer.flush()  # a crash loses no round that is on disk elsewhere

    def _finish(self, run: Run) -> None:
        last = run.metrics[-1]["round"] if run.metrics else 0
        writer = self._opened(last + 1)
        self._stamp(last, str(run.privacy))
        writer.close()
