"""What a test of faults has made and seen: a table, printed at the end."""
import csv, ctypes, os, shutil, subprocess, time
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


class Disk:
    "A folder whose disk can be filled: a small file system in memory, or else a folder that is made unwritable."
    def __init__(self, folder, megabytes=48):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        libc = ctypes.CDLL(None, use_errno=True)
        size = f"size={megabytes}m".encode()
        self.mounted = libc.mount(b"tmpfs", str(self.folder).encode(), b"tmpfs", 0, size) == 0
        self.how = "a full file system" if self.mounted else "a folder without the right to write"
        if not self.mounted and os.geteuid() == 0: self.how = ""                    # root may write everywhere

    def fill(self):
        if not self.mounted:
            for folder in (self.folder, *self.folder.rglob("*/")): folder.chmod(0o500)
            return
        with (self.folder/"full").open("wb", buffering=0) as f:
            try:
                while True: f.write(bytes(4096))
            except OSError: pass

    def free(self):
        if self.mounted: return (self.folder/"full").unlink()
        for folder in (self.folder, *self.folder.rglob("*/")): folder.chmod(0o700)

    def close(self):
        if self.mounted: ctypes.CDLL(None).umount2(str(self.folder).encode(), 2)


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long ahead(void) { const char *s = getenv("FDGNB_TEST_CLOCK"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t which, struct timespec *t) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(which, t);
    if (!code && which == CLOCK_REALTIME) t->tv_sec += ahead();
    return code;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(t, zone);
    if (!code && t) t->tv_sec += ahead();
    return code;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""


def make_clock(folder):
    "{variable: value} by which a process's clock is FDGNB_TEST_CLOCK seconds ahead; None without a compiler of C."
    compiler = shutil.which("cc")
    if not compiler: return None
    (folder/"clock.c").write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder/"clock.so", folder/"clock.c", "-ldl"], check=True)
    return dict(LD_PRELOAD=str(folder/"clock.so"))


OTHER = """
import sys
if any("clientapp" in word for word in sys.orig_argv):
    from fdgnb.runs import versions
    versions.BEHAVIOR += 1
"""


def write_other_code(folder):
    "A folder for PYTHONPATH by which the app of a site has a later version of the loop."
    folder.mkdir(parents=True)
    (folder/"sitecustomize.py").write_text(OTHER)
    return folder
