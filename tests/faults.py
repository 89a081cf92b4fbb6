"""What a test of faults has made and seen: a table, printed at the end, and written to the file FDGNB_FAULTS names."""
import csv, time
from pathlib import Path

TABLE = []


def note(fault, expected, came):
    "A line of the table of faults."
    came = " ".join(str(came).split())
    TABLE.append(dict(fault=fault, expected=expected, came=came))
    print(f"\n[{time.strftime('%X')}] {fault}: {came}", flush=True)


def show_table():
    "The table as text."
    return "\n\n".join(f"{i}. {row['fault']}\n   expected: {row['expected']}\n   came:     {row['came']}"
                       for i, row in enumerate(TABLE, 1))


def write_table(file):
    "The table as a file of comma-separated values."
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with Path(file).open("w", newline="") as f:
        out = csv.DictWriter(f, ["fault", "expected", "came"], lineterminator="\n")
        out.writeheader()
        out.writerows(TABLE)
