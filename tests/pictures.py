"""Small images, arrays and DICOM files that tests of data write, and the command line of data in this process."""
import runpy, sys
import numpy as np
import pytest
from PIL import Image


def pixels(*shape, seed=0):
    "Random bytes."
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_picture(file, x=None, seed=0, **how):
    "Write an image, random colors of 8x8 pixels by default."
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(8, 8, 3, seed=seed) if x is None else x).save(file, **how)


def write_shop(folder, domains="ab", classes="xy", n=3):
    "A folder of <domain>/<class>/<image>, all images different."
    places = [(d, c, i) for d in domains for c in classes for i in range(n)]
    for seed, (d, c, i) in enumerate(places): write_picture(folder/d/c/f"{i}.png", seed=seed)
    return folder


def save_dicom(x, file, **fields):
    "A DICOM file of numbers of 12 bits in 16, with other fields where they are given."
    pydicom = pytest.importorskip("pydicom")
    ds = pydicom.Dataset()
    ds.file_meta = pydicom.dataset.FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    ds.file_meta.MediaStorageSOPClassUID = ds.SOPClassUID = pydicom.uid.CTImageStorage
    ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPInstanceUID = "1.2.3"
    ds.Rows, ds.Columns, ds.SamplesPerPixel, ds.PhotometricInterpretation = *x.shape, 1, "MONOCHROME2"
    ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 12, 11, 0
    for name, value in fields.items(): setattr(ds, name, value)
    ds.PixelData = x.tobytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    ds.save_as(file, enforce_file_format=True)


def call_data(monkeypatch, capsys, *words):
    "(exit status, what it printed, its errors) of `python -m fdgnb.data` with some words."
    monkeypatch.setattr(sys, "argv", ["fdgnb.data", *map(str, words)])
    monkeypatch.delitem(sys.modules, "fdgnb.data.__main__", raising=False)
    with pytest.raises(SystemExit) as end: runpy.run_module("fdgnb.data", run_name="__main__")
    said = capsys.readouterr()
    return end.value.code, said.out, said.err
