"""The cache of decoded data: made once, repaired, its user's alone, off, listed and cleared."""
import os, shutil, subprocess, sys
import pytest
from conftest import said, says
from pictures import call_data, write_shop
import fdgnb


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"cache"))
    return tmp_path/"cache"


def read(tmp_path): return fdgnb.from_folder(tmp_path/"shop", size=8)


def test_what_is_altered_is_said_and_made_anew(tmp_path, cache):
    "Cut, emptied, one byte changed or gone: one line, and the same bits."
    write_shop(tmp_path/"shop", "a")
    bits = read(tmp_path)["a"].x.clone()
    entry, = cache.iterdir()
    made = entry.stat().st_ino
    assert read(tmp_path)["a"].x.equal(bits) and entry.stat().st_ino == made
    flipped = lambda b: b[:-20] + bytes([b[-20] ^ 1]) + b[-19:]
    for file in sorted(entry.iterdir()):
        for spoil in (lambda b: b[:-1], lambda b: b"", flipped, None):
            if spoil is None: file.unlink()
            else:
                file.write_bytes(spoil(file.read_bytes()))
                os.utime(file, ns=(1, 1))
            data, lines = said(lambda: read(tmp_path))
            assert data["a"].x.equal(bits) and len(lines) == 1 and "anew" in lines[0], (file, lines)
    data["a"].x.add_(1)
    assert read(tmp_path)["a"].x.equal(bits) and list(cache.iterdir()) == [entry]


def test_two_processes_make_one_entry(tmp_path, cache):
    shop = str(write_shop(tmp_path/"shop", "a"))
    code = f"import fdgnb; print(int(fdgnb.from_folder({shop!r}, size=8)['a'].x.sum()))"
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    both = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)]
    first, second = (process.communicate(timeout=120)[0] for process in both)
    assert first == second != "" and len(list(cache.iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files")
def test_a_cache_is_its_users_alone_or_a_groups(tmp_path, cache, monkeypatch):
    write_shop(tmp_path/"shop")
    modes = lambda: {oct(path.stat().st_mode & 0o777) for path in (cache, *cache.rglob("*"))}
    read(tmp_path)
    assert modes() == {"0o700", "0o600"}
    shutil.rmtree(cache)
    cache.mkdir()
    cache.chmod(0o770)
    read(tmp_path)
    assert {mode[-1] for mode in modes()} == {"0"} and "0o770" in modes()
    cache.chmod(0o777)
    says(lambda: read(tmp_path), "FDGNB_CACHE")
    monkeypatch.delenv("FDGNB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path/"user"))
    read(tmp_path)
    assert len(list((tmp_path/"user"/"fdgnb").iterdir())) == 2 or sys.platform != "linux"


def test_nothing_is_kept_where_the_cache_is_off_and_nothing_decoded_without_room(tmp_path, monkeypatch):
    kept = fdgnb.from_folder(write_shop(tmp_path/"shop"), size=8)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**8))
    says(lambda: fdgnb.from_folder(tmp_path/"shop", size=4096), "12 images of 4096 pixels", "free")
    monkeypatch.setenv("FDGNB_CACHE", "off")
    before = sorted(tmp_path.rglob("*"))
    assert read(tmp_path)["a"].x.equal(kept["a"].x) and sorted(tmp_path.rglob("*")) == before


def test_what_is_kept_is_listed_and_cleared_and_nothing_else(tmp_path, cache, monkeypatch, capsys):
    call = lambda *words: call_data(monkeypatch, capsys, *words)
    call("prepare", write_shop(tmp_path/"shop"), "--size", 8)
    call("prepare", "digits", "--domain", "inked", "--size", 8)
    (cache/"notes").mkdir()
    (cache/"notes"/"manifest.json").write_text("{}")
    code, out, _ = call("cache")
    assert code == 0 and "3 entries" in out and "shop-a-8" in out and str(cache) in out
    assert "2 entries of shop" in call("cache", "--clear", "shop")[1]
    assert sorted(path.name.split("-")[0] for path in cache.iterdir()) == ["digits", "notes"]
    assert call("prepare", "--clean")[0] == 0 and [path.name for path in cache.iterdir()] == ["notes"]
