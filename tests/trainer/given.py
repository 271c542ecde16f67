"""given - what the tests of ckptfs.dcp give torch to call: classes of a
module, for processes that import them."""
import io
import zlib

from torch.distributed.checkpoint._extension import StreamTransformExtension

from ckptfs.dcp import Writer


class LateWriter(Writer):
    """It ends when it is told to, in whichever process."""

    def __init__(self, path, gate):
        super().__init__(path)
        self.gate = gate  # a FIFO

    def finish(self, metadata, results):
        with open(self.gate, "rb"):  # until somebody opens it to write
            super().finish(metadata, results)


class _Compressed(io.BytesIO):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def close(self):
        if not self.closed:
            self.output.write(zlib.compress(self.getvalue()))
            self.output.close()
        super().close()


class Zlib(StreamTransformExtension):
    """As torch's ZStandard, by a module that everybody has."""

    @staticmethod
    def registry_name():
        return "stream.zlib"

    @staticmethod
    def from_descriptor(version):
        return Zlib()

    def get_descriptor(self):
        return "stream.zlib/1"

    def transform_to(self, output):
        return _Compressed(output)

    def transform_from(self, input):
        return io.BytesIO(zlib.decompress(input.read()))
