"""ckptfs.torchtitan: what CheckpointManager saves in each of its modes and
formats goes through segments, is what torch itself reads, and is loaded the
same way; what it does not know it leaves alone. With torchtitan in the Python
of the trainer that is tried, else a stand-in of it (titan.py)."""
import os
import sys
import warnings

import test_dcp
import trainer
from trainer import ck

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ.setdefault("CKPTFS_GPU_LIBRARY",
                      os.path.join(ck.BUILD, "gpu/libckpt_gpu.so.0"))
sys.path.insert(0, os.path.join(HERE, "../../gpu/python"))

MODES = ("disabled", "async", "async_with_pinned_mem")


class Holder:
    """An optimizer's, a data loader's: any Stateful one. What it tells is its
    own list, which goes on changing."""

    def __init__(self, *seen):
        self.seen = list(seen)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Adapter:
    """Other names, and one file or two."""

    hf_assets_path = None

    def __init__(self, mapping):
        self.fqn_to_index_mapping = \
            {"hf.weight": 1, "hf.bias": 2} if mapping else None

    def to_hf(self, state):
        return {f"hf.{name}": one for name, one in state.items()}

    def from_hf(self, state):
        return {name[3:]: one for name, one in state.items()}

    def get_hf_storage_reader(self, path, from_quantized=False):
        from torch.distributed.checkpoint import HuggingFaceStorageReader
        return HuggingFaceStorageReader(path)


class Job:
    """A model that is cut among the ranks, and its CheckpointManager."""

    def __init__(self, folder, mode="disabled", mapping=False, **options):
        import torch
        import titan
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        module = titan.manager_module()
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        self.model, self.loader = torch.nn.Linear(50, 70), Holder(0)
        for name, one in list(self.model.named_parameters()):
            setattr(self.model, name, torch.nn.Parameter(distribute_tensor(
                torch.zeros_like(one), mesh, [Shard(0)])))
        self.manager = module.CheckpointManager(
            module.CheckpointManager.Config(
                enable=True, folder="of the job", interval=1, async_mode=mode,
                last_save_in_hf=True, keep_latest_k=0, **options),
            dataloader=self.loader, model_parts=[self.model],
            optimizers=Holder(1), lr_schedulers=Holder(2),
            states={"train_state": Holder(3)}, sd_adapter=Adapter(mapping),
            base_folder=folder)

    def fill(self, value):
        import torch
        with torch.no_grad():
            for one in self.model.parameters():
                one.to_local().fill_(value)

    def holds(self, value):
        return all((one.to_local() == value).all()
                   for one in self.model.parameters())


def saved_here():
    import ckptfs
    return ckptfs.counters()["saves"]


def loads():
    """A list of who has read something, from here on."""
    import ckptfs.dcp
    found = []
    for reader in (ckptfs.dcp.Reader, ckptfs.dcp.HFReader):
        def read(self, *args, theirs=reader.read_data):
            found.append(type(self).__name__)
            return theirs(self, *args)
        reader.read_data = read
    return found


def modes(folder, rank, world, store):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import ckptfs.torchtitan
    import titan
    test_dcp.join(rank, world, store)
    titan.manager_module()
    ckptfs.torchtitan.install()
    readers = loads()
    for number, mode in enumerate(MODES, 1):
        job, before = Job(f"{folder}/{mode}", mode), saved_here()
        job.fill(number)
        job.manager.save(1)
        job.loader.seen.append(1)  # the next batch, while it is copied
        job.manager.maybe_wait_for_staging()
        job.fill(-1)
        job.manager.maybe_wait_for_saving()
        assert saved_here() == before + 1, mode
        job.manager.load(1)
        assert job.holds(number) and job.loader.seen == [0], mode
        got = {"weight": torch.zeros(70, 50)}
        dcp.load(got, checkpoint_id=f"{job.manager.folder}/step-1")
        assert (got["weight"] == number).all(), mode
        job.manager.close()
    in_hf_format(folder)
    assert readers == 3 * ["Reader"] + 2 * ["HFReader"], readers
    if trainer.on_ckptfs(folder):
        assert ckptfs.counters()["plain_saves"] == 0
    # And as it was.
    ckptfs.torchtitan.uninstall()
    job, before = Job(f"{folder}/theirs", "async"), saved_here()
    job.fill(5)
    job.manager.save(1)
    job.manager.maybe_wait_for_saving()
    assert saved_here() == before
    job.fill(0)
    job.manager.load(1)
    assert job.holds(5) and len(readers) == 5
    dist.barrier()
    dist.destroy_process_group()


def in_hf_format(folder):
    """The last step, in one file and in two, by its index."""
    import torch.distributed as dist
    from safetensors.torch import load_file
    for mapping, files in ((False, ["model-00001-of-00001.safetensors"]),
                           (True, ["model-00001-of-00002.safetensors",
                                   "model-00002-of-00002.safetensors"])):
        job, before = Job(f"{folder}/hf {mapping}", mapping=mapping), \
            saved_here()
        job.fill(7)
        job.manager.save(9, last_step=True)
        path = f"{job.manager.folder}/step-9"
        assert saved_here() > before
        dist.barrier()
        assert sorted(os.listdir(path)) == [
            *files, "model.safetensors.index.json", "sharded"]
        found = {}
        for name in files:
            found.update(load_file(f"{path}/{name}"))
        assert found["hf.weight"].shape == (70, 50)
        assert all((one == 7).all() for one in found.values())
        job = Job(f"{folder}/new {mapping}", initial_load_path=path,
                  initial_load_in_hf=True)
        job.manager.load()
        assert job.holds(7)


def apart(folder, rank, world, store):
    """What goes elsewhere, and versions that are not known."""
    import torch
    import torch.distributed.checkpoint as dcp
    import ckptfs.torchtitan
    import titan
    module = titan.manager_module()
    ckptfs.torchtitan.install()
    theirs, got = {"x": torch.ones(3)}, {"x": torch.zeros(3)}
    module.dcp.save(theirs, checkpoint_id="memory://elsewhere", no_dist=True)
    module.dcp.load(got, checkpoint_id="memory://elsewhere", no_dist=True)
    assert torch.equal(got["x"], theirs["x"]) and saved_here() == 0
    assert module.dcp.FileSystemReader is dcp.FileSystemReader
    ckptfs.torchtitan.install()  # once more
    ckptfs.torchtitan.uninstall()
    assert module.dcp is dcp
    module.HuggingFaceStorageWriter = None  # it saves in another way
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):  # and is said once
            ckptfs.torchtitan.install()
    assert [str(one.message) for one in said if "torchtitan" in
            str(one.message)] and len(said) == 1, said
    assert module.dcp is dcp


PROGRAMS = {f.__name__: f for f in (modes, apart)}


def tests():
    @ck.posix
    def each_mode_and_format_goes_through_segments(fs):
        trainer.ranks(__file__, "modes", fs.dir, 2, fs.mnt.rstrip("/") + ".gloo",
                      MASTER_ADDR="127.0.0.1")

    @ck.posix
    def what_is_not_ours_is_left_alone(fs):
        trainer.finish(trainer.start(__file__, "apart", fs.dir, 0, 1, ""))


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
