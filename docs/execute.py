"""papermill's command: what a page refuses is one line; an error of one's own method keeps its frames."""
import sys
from papermill.cli import papermill
from papermill.exceptions import PapermillExecutionError

REFUSALS = "FdgnbError", "MetricError"
sys.tracebacklimit = 0                                # hides papermill's own frames

try: papermill()
except PapermillExecutionError as error:
    sys.exit(f"error: {error.evalue}" if error.ename in REFUSALS else str(error))
