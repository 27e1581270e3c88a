"""Observers that show a run while it runs: log lines, a bar in notebooks, a page in the browser.

They show what the metrics of a run hold anyway, and change nothing.
"""

from udpfl.live.log import RoundLog
from udpfl.live.notebook import NotebookBar, is_notebook
from udpfl.live.page import LivePage

__all__ = ["LivePage", "NotebookBar", "RoundLog", "is_notebook"]
