"""papermill's command, that says what a page refuses in one line; an error of one's own keeps its frames."""
import sys
from papermill.cli import papermill
from papermill.exceptions import PapermillExecutionError

REFUSALS = "FdgnbError", "MetricError"
sys.tracebacklimit = 0                                # papermill's own frames

try: papermill()
except PapermillExecutionError as error:
    sys.exit(f"error: {error.evalue}" if error.ename in REFUSALS else str(error))
