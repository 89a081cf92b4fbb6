"""papermill's command, that says what a page refuses in one line."""
import sys
from papermill.cli import papermill
from papermill.exceptions import PapermillExecutionError

try: papermill()
except PapermillExecutionError as error:
    refused = error.ename == "FdgnbError"
    sys.exit(f"error: {error.evalue}" if refused else str(error))
