"""The scale of pixels: decided once over all domains, said, kept with a run, and the same in `predict`."""
import numpy as np
import pytest
import torch
from PIL import Image
from conftest import said, says
import fdgnb
from fdgnb import FdgnbError
from fdgnb.data.cache import cache_dir
from fdgnb.data.scale import check_white, decide_white, read_whole, to_bytes

rng = np.random.default_rng(0)
bytes_ = rng.integers(0, 256, (8, 16, 16), dtype=np.uint8)
deep = rng.integers(0, 4096, (8, 16, 16)).astype(np.uint16)
deep[0, 0, :2] = 0, 4095
y = [0, 1]*4
USUAL = dict(backbone="cnn2", batch_size=4, local_steps=1, progress=False, workers=1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"cache"))


def write(folder, suffix="png", **domains):
    "A folder of images, half of them of each class: {domain: images}."
    for d, images in domains.items():
        for i, image in enumerate(images):
            (folder/d/"xy"[i % 2]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder/d/"xy"[i % 2]/f"{i}.{suffix}")
    return folder


def test_twelve_bits_are_one_scale_in_files_images_and_arrays(tmp_path):
    "4095 is white in each, and a dark domain keeps the scale of the bright one."
    folder = write(tmp_path/"rays", a=deep, b=deep//4)
    read, lines = said(lambda: fdgnb.from_folder(folder, size=16))
    assert read.white == 4095 and "4095 counts as white" in lines[0] and len(lines) == 1
    arrays, lines = said(lambda: fdgnb.from_arrays(dict(a=(deep, y), b=(deep.astype(np.int64)//4, y))))
    assert arrays.white == 4095 and len(lines) == 1
    pils = {d: [(Image.fromarray(v), i % 2) for i, v in enumerate(x)] for d, x in dict(a=deep, b=deep//4).items()}
    torch_, lines = said(lambda: fdgnb.from_torch(pils))
    assert torch_.white == 4095 and len(lines) == 1
    for d in "ab":
        assert torch.equal(arrays[d].x, torch_[d].x)
        by_class = torch.cat([arrays[d].x[::2], arrays[d].x[1::2]])
        assert torch.equal(read[d].x, by_class.expand(8, 3, 16, 16))
    assert arrays["a"].x.max() == 255 and arrays["b"].x.max() == 64


def test_the_folder_is_read_again_from_the_cache(tmp_path, monkeypatch):
    "Entries of both readings are kept; a brighter image is another scale and another entry."
    folder = write(tmp_path/"rays", a=deep//4, b=deep//4)
    first, _ = said(lambda: fdgnb.from_folder(folder, size=16))
    kept = {p.name for p in cache_dir().iterdir()}
    def never(*args, **kw): raise AssertionError("decoded again")
    with monkeypatch.context() as m:
        m.setattr("fdgnb.data.folders.decode_with_high", never)
        again, lines = said(lambda: fdgnb.from_folder(folder, size=16))
    assert torch.equal(first["a"].x, again["a"].x) and "1023 counts as white" in lines[0]
    assert {p.name for p in cache_dir().iterdir()} == kept
    write(tmp_path/"rays", b=deep)
    brighter, _ = said(lambda: fdgnb.from_folder(folder, size=16))
    assert brighter.white == 4095 and brighter["a"].x.max() < 70 < first["a"].x.max()


def test_white_as_the_caller_says(tmp_path):
    folder = write(tmp_path/"rays", a=deep, b=deep)
    read, lines = said(lambda: fdgnb.from_folder(folder, size=16, white=16383))
    assert (read.white, read["a"].x.max(), lines) == (16383, 64, [])
    says(lambda: fdgnb.from_folder(folder, size=16, white=1023), "cannot read", "beyond 0 to 1023")
    says(lambda: fdgnb.from_arrays(dict(a=(deep, y)), white=1023), "domain 'a'", "beyond 0 to 1023")
    for white in (0, -1, "x", 70_000): says(lambda: fdgnb.from_arrays(dict(a=(deep, y)), white=white), "white=")
    assert fdgnb.get_dataset(str(folder), size=16, white=4095)["a"].x.max() == 255


MIXED = {
    "bytes and 0/1": dict(a=bytes_, b=(bytes_ > 99).astype(np.uint8)),
    "bytes and 0/1 of 64 bits": dict(a=bytes_, b=(bytes_ > 99).astype(np.int64)),
    "bytes in 64 bits and 12 bits": dict(a=bytes_.astype(np.int64), b=deep),
    "0/1 and 12 bits": dict(a=(bytes_ > 99).astype(np.uint8), b=deep)}


@pytest.mark.parametrize("what", MIXED)
def test_two_scales_in_one_data_set(what, tmp_path):
    domains = MIXED[what]
    says(lambda: fdgnb.from_arrays({d: (x, y) for d, x in domains.items()}), "'a'", "'b'", "two scales", "white=")
    if all(x.dtype == np.uint8 for x in domains.values()):
        says(lambda: fdgnb.from_folder(write(tmp_path/"two", **domains), size=16), "'a'", "'b'", "two scales")


def test_what_needs_no_word_and_what_is_dark():
    "Bytes, fractions and black are plain; one camera of 8 bits beside one of 12 is no second scale."
    plain = dict(a=(bytes_, y), b=((bytes_/255).astype(np.float32), y), c=(np.zeros_like(bytes_), y))
    data, lines = said(lambda: fdgnb.from_arrays(plain, kind="images"))
    assert (data.white, lines) == (255, []) and torch.equal(data["a"].x, data["b"].x)
    data, lines = said(lambda: fdgnb.from_arrays(dict(a=(bytes_, y), b=(deep, y))))
    assert data.white == 4095 and torch.equal(data["a"].x[:, 0], torch.from_numpy(bytes_))
    _, lines = said(lambda: fdgnb.from_arrays(dict(a=(bytes_, y), b=(bytes_//17, y))))
    assert "brightest pixel of 'b' is 15 where 255" in lines[0]
    assert fdgnb.from_arrays(dict(a=(bytes_//17, y)), white=15)["a"].x.max() == 255
    assert decide_white("own", {}) == 255


ASKED = {
    "0/1": ((bytes_ > 99).astype(np.int64), 1), "12 bits": (deep, 4095), "64 bits": (deep.astype(np.int64), 4095),
    "bytes": (bytes_, 255), "bytes in 32 bits": (bytes_.astype(np.int32), 255),
    "fractions": ((bytes_/255 + .001).clip(0, 1), 255), "booleans": (bytes_ > 99, 255)}


@pytest.mark.parametrize("what", ASKED)
def test_the_same_array_has_the_same_logits(what, tmp_path):
    "In the data set, by the run, and by the run read back from its folder without the data."
    x, white = ASKED[what]
    data, _ = said(lambda: fdgnb.from_arrays(dict(a=(x, y), b=(x[::-1], y))))
    assert data.white == white
    run = fdgnb.fit("fedavg", data, None, 1, out=tmp_path/"run", **USUAL)
    back = fdgnb.load(tmp_path/"run")
    wanted = run.predict(data["a"])
    for model in (run, back):
        for given in (x, torch.from_numpy(x.astype(np.int64) if x.dtype == np.uint16 else x), x[:, None], list(x)):
            assert torch.equal(model.predict(given), wanted)
        assert torch.equal(model.predict(data["a"].x if white >= 255 else data["a"]), wanted)
    with pytest.raises(FdgnbError, match=f"beyond 0 to {white}, "): back.predict(np.full((1, 16, 16), white + 1))


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
def test_images_of_pil_and_files_in_predict(kind, tmp_path):
    "A file of 12 bits, and an image of mode I, as the run's own: by its white, not by their own range."
    images = [Image.fromarray(v) for v in (deep//np.array([1, 9]*4)[:, None, None]).astype(kind)]
    data, _ = said(lambda: fdgnb.from_torch({d: [(im, i % 2) for i, im in enumerate(images)] for d in "ab"}))
    run = fdgnb.fit("fedavg", data, None, 1, out=tmp_path/"run", **USUAL)
    for i, im in enumerate(images): im.save(tmp_path/f"{i}.{'png' if kind == np.uint16 else 'tif'}")
    files = sorted(tmp_path.glob("?.*"))
    wanted = run.predict(data["a"])
    for model in (run, fdgnb.load(tmp_path/"run")):
        assert torch.equal(model.predict(images), wanted) and torch.equal(model.predict(files), wanted)
        assert torch.equal(model.predict(images[1]), model.predict(data["a"].x[1:2]))
    bright = Image.fromarray(np.full((16, 16), 5000, np.uint16))
    says(lambda: run.predict([bright]), "beyond 0 to 4095")
    says(lambda: run.predict([Image.new("RGB", (16, 16), "red")]), "a color image, but the run's are gray")


def test_pixels_that_no_scale_fits(tmp_path):
    write(tmp_path/"own", "tif", a=(deep.astype(np.int32) - 5), b=deep.astype(np.int32))
    says(lambda: fdgnb.from_folder(tmp_path/"own", size=16), "cannot read", "give window=")
    says(lambda: fdgnb.from_arrays(dict(a=(deep.astype(int)*100, y))), "domain 'a'", "scale them to [0, 1]")


def test_check_says_the_scale(tmp_path, capsys):
    from fdgnb.data.prepare import main
    mixed = MIXED["bytes and 0/1"]
    for domains, part, code in ((dict(a=deep, b=deep), "4095 counts as white", 0), (mixed, "two scales", 1)):
        folder = write(tmp_path/part.split()[0], **domains)
        assert main(["check", str(folder)]) == code and part in capsys.readouterr().out
    assert not (tmp_path/"cache").exists() or not list((tmp_path/"cache").iterdir())


SCALES = {255: dict(a=(255, 0), b=(0, 200)), 1: dict(a=(0, 1), b=(0, 0)), 4095: dict(a=(0, 4000), b=(0, 900)),
          65535: dict(a=(0, 60000))}


@pytest.mark.parametrize("white", SCALES)
def test_white_is_the_smallest_that_fits(white):
    found, lines = said(lambda: decide_white("own", SCALES[white]))
    assert found == white and len(lines) == (white != 255)


def test_bytes_beside_twelve_bits_and_a_dark_domain():
    assert said(lambda: decide_white("own", dict(a=(255, 0), b=(0, 4000))))[0] == 4095
    white, lines = said(lambda: decide_white("own", dict(a=(255, 0), b=(9, 0))))
    assert white == 255 and "brightest pixel of 'b' is 9" in lines[0]


@pytest.mark.parametrize("highs", [dict(a=(255, 0), b=(0, 1)), dict(a=(0, 200), b=(0, 4000)),
                                   dict(a=(1, 0), b=(250, 0)), dict(a=(0, 70000))])
def test_scales_that_do_not_fit_are_refused(highs):
    says(lambda: decide_white("own", highs), "scale")


def test_a_white_that_is_given():
    assert decide_white("own", dict(a=(0, 4000), b=(0, 1000)), 4000) == 4000
    says(lambda: decide_white("own", dict(a=(0, 4001)), 4000), "beyond 0 to 4000")
    for white in (0, "12 bits", 2.5): says(lambda white=white: check_white(white), "white=")


def test_whole_numbers_become_bytes():
    steps = np.array([0, 1, 2048, 4095])
    assert to_bytes(steps, 4095).tolist() == [0, 0, 128, 255] and read_whole(steps[:2], 1, "a").tolist() == [0, 255]
    says(lambda: read_whole(steps, 255, "domain 'a'"), "domain 'a'", "beyond 0 to 255")
