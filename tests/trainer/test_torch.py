"""torch.save and torch.load: by path, by file object, mapped, overwritten in
place, renamed, and rotated by mtime as HF Trainer does."""
import json
import os
import shutil

import trainer
from trainer import ck, equal, state


def save(folder):
    import torch

    def at(*names):
        return os.path.join(folder, *names)
    torch.save(state(1), at("path.pt"))
    with open(at("file.pt"), "wb") as f:
        torch.save(state(2), f)
        f.flush()
        os.fsync(f.fileno())
    torch.save(state(3), at("legacy.pt"),
               _use_new_zipfile_serialization=False)
    for seed in (98, 99, 4):  # the same path again and again
        torch.save(state(seed), at("in place.pt"))
    torch.save(state(97), at("in place smaller.pt"))
    torch.save({"step": torch.tensor(5)}, at("in place smaller.pt"))
    torch.save(state(6), at("renamed.pt.tmp"))
    os.rename(at("renamed.pt.tmp"), at("renamed.pt"))
    torch.save(state(7), at("renamed.pt"))
    large = {"w": torch.arange(17 << 20, dtype=torch.float32)}  # 68 MiB
    torch.save(large, at("mapped.pt"))
    held = torch.load(at("mapped.pt"), mmap=True)
    torch.save({"w": -large["w"]}, at("mapped.pt"))
    if trainer.on_ckptfs(folder):  # elsewhere the map sees the new bytes
        equal(held, large, "a map of the old content")
    del held, large
    model = torch.nn.Sequential(torch.nn.Linear(256, 512),
                                torch.nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, 5):
        model(torch.randn(8, 256)).sum().backward()
        optimizer.step()
        checkpoint = at(f"checkpoint-{step}")
        os.mkdir(checkpoint)
        torch.save(model.state_dict(), os.path.join(checkpoint, "model.pt"))
        torch.save(optimizer.state_dict(), os.path.join(checkpoint, "opt.pt"))
        with open(os.path.join(checkpoint, "trainer_state.json"), "w",
                  encoding="utf-8") as f:
            json.dump({"global_step": step}, f)
        rotate(folder, keep=2)
    torch.save({k: v.clone() for k, v in model.state_dict().items()},
               at("last.pt"))


def rotate(folder, keep):
    names = [n for n in os.listdir(folder) if n.startswith("checkpoint-")]
    names.sort(key=lambda n: os.path.getmtime(os.path.join(folder, n)))
    for name in names[:-keep]:
        shutil.rmtree(os.path.join(folder, name))


def check(folder):
    import torch

    def at(*names):
        return os.path.join(folder, *names)
    for name, seed in (("path.pt", 1), ("file.pt", 2), ("legacy.pt", 3),
                       ("in place.pt", 4), ("renamed.pt", 7)):
        equal(torch.load(at(name)), state(seed), name)
        with open(at(name), "rb") as f:
            equal(torch.load(f), state(seed), name + " by file object")
        if name != "legacy.pt":
            mapped = torch.load(at(name), mmap=True)
            equal(mapped, state(seed), name + " mapped")
            mapped["embedding"].zero_()  # private: the file does not change
            equal(torch.load(at(name)), state(seed), name + " afterwards")
    assert torch.load(at("in place smaller.pt")) == {"step": torch.tensor(5)}
    here = sorted(n for n in os.listdir(folder) if n.startswith("checkpoint"))
    assert here == ["checkpoint-3", "checkpoint-4"], here
    last = torch.load(at("last.pt"))
    equal(torch.load(at("checkpoint-4", "model.pt")), last, "last")
    model = torch.nn.Sequential(torch.nn.Linear(256, 512),
                                torch.nn.Linear(512, 10))
    model.load_state_dict(last)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(torch.load(at("checkpoint-4", "opt.pt")))
    with open(at("checkpoint-4", "trainer_state.json"), encoding="utf-8") as f:
        assert json.load(f) == {"global_step": 4}
    rotate(folder, keep=2)
    assert os.path.exists(at("checkpoint-3"))


def tests():
    @ck.posix
    def every_tensor_is_loaded_as_it_was_saved(fs):
        trainer.save_and_check(__file__, fs)


if __name__ == "__main__":
    trainer.main({"save": save, "check": check}, tests)
