"""What every loader gives, kept in tests/loaders.json, and the arguments that every published record names again.

    python tests/loaders.py                 compares with the file
    python tests/loaders.py write digits    writes these entries anew, or all
    python tests/loaders.py records         the arguments of every record of reports/records, planned again: no run

Bytes are compared as bytes, an encoder's vectors as near as another processor comes.
"""
import hashlib, json, sys, tempfile, warnings
from pathlib import Path
import numpy as np
import pandas as pd
import torch
from PIL import Image
import fdgnb
from fdgnb.core import FdgnbError, generator
from fdgnb.data.features import encode_images
from fdgnb.runs.records import read_study
from fdgnb.federation.compose import hyper_of
from fdgnb.runs.plan import plan
from fdgnb.settings import Settings, list_settings
from pictures import save_dicom

FILE = Path(__file__).with_name("loaders.json")
RECORDS = Path(__file__).parents[1]/"reports"/"records"
CLOSE = 1e-4                                             # how near another processor comes
SITES, CLASSES = ("north", "south", "west"), ("cat", "dog")


# ------------------------------------------------------------------------------------- small data of one's own
def pixels(n, shape, high=256, seed=0):
    return torch.randint(0, high, (n, *shape), generator=generator(seed)).numpy()


def arrays(shape, high=256, kind=np.uint8, n=6):
    "{site: (x, y)}: samples of a shape, and labels in turn."
    return {site: (pixels(n, shape, high, i).astype(kind), np.arange(n) % 2) for i, site in enumerate(SITES)}


def write_pictures(folder, write, suffix):
    "A folder <site>/<class>/<image>, each image written by `write(pixels, path)`."
    for i, site in enumerate(SITES):
        for j, name in enumerate(CLASSES):
            place = folder/site/name
            place.mkdir(parents=True)
            for k, x in enumerate(pixels(4, (20, 24, 3), seed=10*i + j).astype(np.uint8)):
                write(x, place/f"p{k // 2}_{k}{suffix}")
    return folder


def save(x, path): Image.fromarray(x).save(path)
def save_gray(x, path): Image.fromarray(x[..., 0]).save(path)
def save_deep(x, path): Image.fromarray(x[..., 0].astype(np.uint16)*257).save(path)
def save_transparent(x, path): Image.fromarray(np.concatenate([x, x[..., :1]], -1)).save(path)
def save_text(x, path): path.write_text(" ".join(map(str, x[0, :4, 0])))
def save_array(x, path): np.save(path, x[..., 0])


def save_turned(x, path):
    about = Image.Exif()
    about[0x0112] = 6                                    # to be shown turned by a quarter
    Image.fromarray(x).save(path, exif=about, quality=95)


def save_slice(x, path): save_dicom(x[..., 0].astype(np.uint16)*16, path)


def write_table(folder):
    "A CSV file of pictures, with patients and parts."
    write_pictures(folder/"pictures", save, ".png")
    files = sorted(p.relative_to(folder) for p in (folder/"pictures").rglob("*.png"))
    rows = [dict(file=str(f), label=f.parts[2], domain=f.parts[1], patient=f"{f.parts[1]} {f.stem[:2]}",
                 part=("train", "val", "test", "train")[i % 4]) for i, f in enumerate(files)]
    pd.DataFrame(rows).to_csv(folder/"table.csv", index=False)
    return folder/"table.csv"


class Shelf(torch.utils.data.Dataset):
    "Pictures of PIL with the names of their classes."
    classes = list(CLASSES)
    def __init__(self, seed): self.x = pixels(6, (20, 24, 3), seed=seed).astype(np.uint8)
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return Image.fromarray(self.x[i]), i % 2


def read_pictures(write, suffix, **options):
    return lambda folder: fdgnb.from_folder(write_pictures(folder/"own", write, suffix), **dict(size=16) | options)


def several(folder):
    x = {site: (x, np.stack([y, 1 - y, y*0], 1)) for site, (x, y) in arrays((8, 8)).items()}
    return fdgnb.from_arrays(x, ["a", "b", "c"], multilabel=True)


NAMED = dict(
    digits={}, pacs={}, mnist={}, office_caltech10=dict(size=32), rotated_mnist=dict(angles=[0, 30]),
    digit_five=dict(domains=["mnist", "mnistm", "usps"]), cifar10={}, amazon_review=dict(domains=["kitchen"]))
LOADERS = {
    "png": read_pictures(save, ".png"), "gray": read_pictures(save_gray, ".png"),
    "turned jpeg": read_pictures(save_turned, ".jpg"), "16 bits": read_pictures(save_deep, ".png"),
    "transparent": read_pictures(save_transparent, ".png"), "npy": read_pictures(save_array, ".npy", window=(0, 255)),
    "dicom": read_pictures(save_slice, ".dcm", window=(0, 4095)),
    "patients": read_pictures(save, ".png", groups=r"(p\d)_\d"),
    "table": lambda folder: fdgnb.from_table(write_table(folder), size=16, groups="patient", split="part"),
    "texts": lambda folder: fdgnb.from_texts(write_pictures(folder/"own", save_text, ".txt")),
    "torch": lambda folder: fdgnb.from_torch({site: Shelf(i) for i, site in enumerate(SITES)}, size=16),
    "bytes": lambda folder: fdgnb.from_arrays(arrays((8, 8, 3))), "several labels": several,
    "fractions": lambda folder: fdgnb.from_arrays({k: (x/255, y) for k, (x, y) in arrays((3, 8, 8)).items()}),
    "12 bits": lambda folder: fdgnb.from_arrays(arrays((8, 8), 4096, np.uint16), white=4095),
    "vectors": lambda folder: fdgnb.from_arrays(arrays((5,), kind=np.float32)),
    "features": lambda folder: encode_images(read_pictures(save, ".png", size=64)(folder)),
    "maps": lambda folder: encode_images(read_pictures(save, ".png", size=64)(folder), blocks=6),
} | {name: lambda folder, name=name: fdgnb.get_dataset(name, **NAMED[name]) for name in NAMED}


# ---------------------------------------------------------------------------------------------- what they give
def describe(v):
    "Whole numbers hashed; of fractions the length, and the sum under random signs."
    v = torch.as_tensor(v)
    if not v.is_floating_point(): return hashlib.blake2b(v.contiguous().numpy().tobytes(), digest_size=12).hexdigest()
    flat = v.double().flatten()
    signs = torch.randint(0, 2, (len(flat),), generator=generator(1)).double()*2 - 1
    return [float(f"{float(n):.6g}") for n in (flat.norm(), flat @ signs)]


def describe_domain(d):
    "All that a domain holds."
    parts = dict(x=d.x, y=d.y) | ({} if d.groups is None else dict(groups=d.groups))
    for name in ("split", "official"): parts |= {f"{name} {k}": rows for k, rows in (getattr(d, name) or {}).items()}
    return dict(shape=[*d.x.shape]) | {k: describe(v) for k, v in parts.items()}


def digest_of(label):
    "What a loader gives, as JSON; FdgnbError where its files are not here."
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = LOADERS[label](Path(folder))
        about = dict(name=data.name, classes=list(map(str, data.classes)), white=data.white, defaults=data.defaults)
        found = about | {f"domain {k}": describe_domain(d) for k, d in data.domains.items()}
    return json.loads(json.dumps(found))


def is_near(a, b):
    "Whether two values are equal, their fractions as near as another processor comes."
    if isinstance(a, dict): return a.keys() == b.keys() and all(is_near(v, b[k]) for k, v in a.items())
    if isinstance(a, list): return len(a) == len(b) and all(map(is_near, a, b))
    if isinstance(a, float): return abs(a - b) <= CLOSE*abs(b) + 1e-3
    return a == b


def load(): return json.loads(FILE.read_text()) if FILE.exists() else {}


def write(labels):
    "Put what loaders give into the file."
    found = load() | {label: digest_of(label) for label in labels or LOADERS}
    lines = (f"{json.dumps(k)}: {json.dumps(found[k], separators=(',', ':'))}" for k in LOADERS if k in found)
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def compare(label):
    "'' where a loader gives what the file says, or what differs, or why it is passed over."
    try: found, old = digest_of(label), load()[label]
    except FdgnbError as e: return f"passed over: {str(e)[:60]} ..."
    differ = [k for k in found.keys() | old.keys() if not is_near(found.get(k), old.get(k))]
    return f"differs in {', '.join(sorted(differ))}" if differ else ""


# ----------------------------------------------------------------------------------------------- published runs
def check_record(args):
    "What the arguments of a record differ in, planned from the values that are not the plan's own."
    call = {k: args[k] for k in "method dataset rounds seed device protocol scale".split()}
    wanted = args["settings"] | args["hyper"]
    given = {"load": wanted["load"]} if wanted.get("load") else {}
    for _ in range(4):
        made = plan(**call, hyper=given)
        settings = list_settings(Settings(**made.given))
        found = json.loads(json.dumps(settings | hyper_of(made.method)))
        more = {k: v for k, v in wanted.items() if found.get(k) != v}
        if not more: return {}
        given |= more
    return more


def check_records():
    "Plan published records again, of the comparison the first repetitions: how many name the same run."
    wrong, n = [], 0
    for file in sorted([*RECORDS.glob("*.jsonl.gz"), *RECORDS.glob("*/0.jsonl.gz")]):
        for record in read_study(file):
            n += 1
            try: differ = check_record(record["args"])
            except FdgnbError as e: differ = str(e)
            if differ: wrong.append(f"{file.name.split('.')[0]} {record['args']['method']}: {differ}")
    for line in dict.fromkeys(wrong): print(line)
    print(f"{n - len(wrong)} of {n} records name the same run again")
    return bool(wrong)


def main(words):
    "The exit status of a call with some words."
    if words[:1] == ["records"]: return check_records()
    if words[:1] == ["write"]: return write(words[1:])
    said = {label: compare(label) for label in words or LOADERS}
    for label, line in said.items(): print(f"{label}: {line or 'equal'}")
    return any(line.startswith("differs") for line in said.values())


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
