"A run's model, trained on a new site: the same bits, what moves, classes by name, small sites, saved and loaded."
import numpy as np
import pytest, torch
import fdgnb
from conftest import run, says
from fdgnb import Dataset, Domain, finetune, load
from fdgnb.core import generator
from PIL import Image

SHORT = dict(rounds=2, eval_every=1, eval_local=0)


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    run("fedbn", tiny, out=out, **SHORT)
    return out


@pytest.fixture
def site(tiny): return tiny["blended"]


def state(tuned): return tuned.model.state_dict()


def test_the_same_call_gives_the_same_bits_from_wherever_the_run_is_read(tiny, folder, site):
    done = run("fedbn", tiny, out=folder, **SHORT)
    first = finetune(done, site, epochs=3)
    for again in (load(folder), str(folder)):
        other = finetune(again, site, epochs=3)
        assert other.history.equals(first.history)
        assert all(v.equal(state(first)[k]) for k, v in state(other).items())
    assert not all(v.equal(state(first)[k]) for k, v in state(finetune(done, site, epochs=3, seed=1)).items())


def test_only_the_part_that_is_named_moves(folder, site):
    before = load(folder).model_of().state_dict()
    def moved(which): return {k for k, v in state(finetune(folder, site, which)).items() if not v.equal(before[k])}
    heads, norms, whole = moved("head"), moved("bn"), moved("all")
    statistics = {k for k in before if "running" in k or "num_batches" in k}
    assert heads and all(k.startswith("head.") for k in heads)
    assert norms & statistics and all(before[k].dim() < 2 for k in norms)
    assert heads <= whole and not whole & statistics


def test_it_learns_what_the_run_has_never_seen():
    "Two classes that the site's images show the other way round; its scores are those of what it predicts."
    x, y = torch.randint(0, 100, (40, 3, 16, 16), generator=generator(0)).to(torch.uint8), torch.arange(40) % 2
    x[y == 1] += 100
    data = Dataset("tone", {n: Domain(n, x, y) for n in "ab"}, ["dark", "light"], defaults=dict(backbone="cnn2"))
    tuned = finetune(run("fedavg", data, target=None, rounds=5, batch_size=8), Domain("new", x, 1 - y), epochs=20)
    assert tuned.score(0) == "0.0 %" and tuned.score(20) == "100.0 %"
    assert torch.equal(tuned.predict(x).argmax(1), 1 - y)


def test_classes_go_by_their_names(folder, site, tiny):
    "In another order, and some of them missing."
    order = [7, 2, 0]
    keep = torch.isin(site.y, torch.tensor(order))
    x, y = site.x[keep], torch.tensor([order.index(int(c)) for c in site.y[keep]])
    named = Dataset("site", {"new": Domain("new", x, y)}, [tiny.classes[c] for c in order])
    plain = finetune(folder, Domain("new", x, site.y[keep]), epochs=2)
    assert finetune(folder, named, epochs=2).predict(site).equal(plain.predict(site))
    says(lambda: finetune(folder, Dataset("c", named.domains, ["cat", "2", "0"])), "no class 'cat'")


def test_a_folder_of_images_is_read_at_the_run_s_size_and_white(folder, tmp_path):
    "12-bit images that stay dark: tuned on the brightness that predict shows."
    def fill(home, names, most):
        for name, label in [(name, label) for name in names for label in "kl"]:
            (at := tmp_path/home/name/label).mkdir(parents=True)
            for i in range(6): Image.fromarray(np.full((16, 16), most - i, np.uint16)).save(at/f"{i}.png")
    fill("old", "ab", 4095)
    fill("new", "c", 999)
    done = run("fedavg", fdgnb.from_folder(tmp_path/"old", size=16, white=4095), rounds=1, target=None)
    tuned = finetune(done, f"{tmp_path}/new", epochs=1)
    assert tuned.args["site"] == "c" and tuned.args["n_train"] + tuned.args["n_test"] == 12
    with pytest.warns(UserWarning): other = fdgnb.from_folder(tmp_path/"new", size=16)
    says(lambda: finetune(done, other, epochs=1), "1023", "4095")


@pytest.mark.parametrize("n", [1, 2, 3, 17])
@pytest.mark.parametrize("which", ["all", "head", "bn"])
def test_small_sites_do_not_explode(folder, site, n, which):
    "Few samples, and a number that leaves a short last batch."
    few = Domain("few", site.x[:n], site.y[:n])
    if which == "bn" and n < 3: return says(lambda: finetune(folder, few, which), "needs two")
    tuned = finetune(folder, few, which, epochs=3)
    assert tuned.history.value.max() < 20 and tuned.args["n_train"] >= 1


def test_a_split_of_one_s_own_and_patients_are_kept_apart(folder, site):
    "Scored rows are those of the test part: predicted after tuning, they give its score."
    rows = dict(train=torch.arange(5, 40), val=torch.arange(0), test=torch.arange(5))
    tuned = finetune(folder, Domain("own", site.x, site.y, split=rows), epochs=1)
    right = (tuned.predict(site.x[:5]).argmax(1) == site.y[:5]).float().mean().item()
    last = tuned.history.query("epoch == 1 and split == 'test' and metric == 'accuracy'")["value"].item()
    assert tuned.args["n_test"] == 5 and last == pytest.approx(right, abs=1e-6)
    patients = torch.arange(len(site))//3
    by_patient = finetune(folder, Domain("new", site.x, site.y, groups=patients), epochs=1)
    assert min(by_patient.args["n_test"] % 3, by_patient.args["n_train"] % 3) == 0        # 13 whole ones and one image


def test_saved_loaded_exported_and_tuned_further(folder, site, tmp_path):
    tuned = finetune(folder, site, epochs=2)
    tuned.save(tmp_path/"tuned")
    back = load(tmp_path/"tuned")
    assert back.predict(site).equal(tuned.predict(site)) and back.history.equals(tuned.history)
    assert back.args == tuned.args and back.export(tmp_path/"m.pt2").exists()
    assert finetune(tmp_path/"tuned", site, epochs=1).score(0) == tuned.score(2)
    says(lambda: tuned.save(folder), "holds a run")
    says(lambda: back.adapt(site.x), "fine-tuned already")
    file = tmp_path/"tuned"/"tuned.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    says(lambda: load(tmp_path/"tuned"), "torn")


@pytest.mark.parametrize("given, word", [
    (dict(data="tiny"), "name the site"), (dict(data="tiny", site="blendet"), "'blended'"), (dict(data=3), "name"),
    (dict(data=Domain("v", torch.zeros(4, 5), torch.zeros(4).long())), "(N, 3, 28, 28)"), (dict(run=3), "a run"),
    (dict(epochs=0), "epochs=0"), (dict(lr=1e9), "smaller rate"), (dict(domain="inkt"), "'inked'")], ids=range(8))
def test_what_is_wrong_is_one_line(given, word, folder, site, tiny):
    asked = dict(run=folder, data=site) | given
    if asked["data"] == "tiny": asked["data"] = tiny
    says(lambda: finetune(**asked), word)
