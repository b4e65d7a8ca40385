"""Images in a folder per class: DIR/cat/1.png, DIR/dog/2.jpg, ...; or DIR/train/... and a public DIR/test/...

    found                                         what happens
    ============================================  =====================================================================
    names that begin with a dot                   passed over
    an image that cannot be read                  an error with the file
    another file, or a folder, beside images      an error with its path: it is not known which class it is
    a size or mode of its own                     an error with the file, unless [images] declares size or mode
    16-bit, float                                 an error: a public range of its values is not known
    several frames                                the first is taken
    a folder that is none of the classes          an error
    a class without images                        a class all the same
    no images                                     an error
    images directly in the folder                 features without labels, to predict from

A pixel is divided by 255. ``size`` is height and width; an image of another size is resized (bilinear), which looks at
that image alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadp.app.owndata.base import Encoder, Path
from adadp.app.owndata.schema import MODES, Schema
from adadp.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
BILINEAR = 2
"""Pillow's number of its bilinear filter."""

_DEEP = ("I", "F")
"""How the names of Pillow's modes with more than eight bits begin."""

_DECLARE = 'Declare [images] with size = [32, 32] (height, width) and mode = "RGB" or "L" in a schema.'


@final
@dataclass(frozen=True)
class ImageEncoder(Encoder):
    """Images of one ``size`` (height, width) and ``mode``; others are brought to it if ``resize`` or ``convert``."""

    size: tuple[int, int]
    mode: str
    class_names: tuple[str, ...]
    resize: bool = False
    convert: bool = False
    kind: ClassVar[str] = "images"

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return (MODES[self.mode], *self.size)

    def read(self, path: Path) -> Tensor:
        folder = _existing(path)
        files = _images_in(folder) if not _folders(folder) else [file for file, _ in self._labelled_files(folder)]
        return self._pixels(folder, files)

    def read_labelled(self, path: Path) -> tuple[Tensor, Tensor]:
        folder = _existing(path)
        files = self._labelled_files(folder)
        return self._pixels(folder, [file for file, _ in files]), torch.tensor([label for _, label in files])

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "size": list(self.size),
            "mode": self.mode,
            "classes": list(self.class_names),
            "resize": self.resize,
            "convert": self.convert,
        }

    def _labelled_files(self, folder: FilePath) -> list[tuple[FilePath, int]]:
        """Every image and the number of its class, in the order of their names."""
        found = []
        for each in _folders(folder):
            if each.name not in self.class_names:
                raise InputError(
                    f"The folder {each} is none of the classes {', '.join(self.class_names)}.",
                    fix="Rename it, take it out, or declare the class in target.classes of the schema.",
                )
            found += [(file, self.class_names.index(each.name)) for file in _images_in(each)]
        return found

    def _pixels(self, folder: FilePath, files: list[FilePath]) -> Tensor:
        if not files:
            raise _no_images(folder)
        shape = (len(files), *self.size, MODES[self.mode])
        pixels = np.empty(shape, np.float32)
        for file, out in zip(files, pixels, strict=True):
            out[:] = self._image(file).reshape(shape[1:])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous() / 255

    def _image(self, file: FilePath) -> NDArray[np.uint8]:
        """The bytes of one image, in the size and mode of all."""
        image = _open(file)
        if image.mode.startswith(_DEEP):
            raise InputError(
                f"{file} has more than eight bits per pixel (mode {image.mode}).",
                why="The range of its values is not publicly known, so they cannot be scaled.",
                fix="Convert the images to eight bits first.",
            )
        height, width = self.size
        if (image.size != (width, height) and not self.resize) or (image.mode != self.mode and not self.convert):
            raise InputError(
                f"{file} is {image.height} x {image.width} (height x width) of mode {image.mode}, and the images are "
                f"{height} x {width} of mode {self.mode}.",
                why="All records must have the same shape.",
                fix=_DECLARE,
            )
        if image.mode != self.mode:
            image = image.convert(self.mode)
        if image.size != (width, height):
            image = image.resize((width, height), BILINEAR)
        return np.asarray(image, dtype=np.uint8)


def image_encoder(path: Path, schema: Schema) -> ImageEncoder:
    """The encoder for the images in ``path``: what ``schema`` leaves open is taken from the folder and disclosed.

    Open classes are the names of the folders, sorted; an open size or mode is that of the first image.
    """
    folder = _existing(path)
    classes = schema.classes or tuple(each.name for each in _folders(folder))
    if len(classes) < 2:
        raise InputError(
            f"{folder} has {len(classes)} folders, and at least two classes are needed.",
            fix="Put the images into one folder for each class, like cat/1.png and dog/2.png.",
        )
    size, mode = schema.size, schema.mode
    if size is None or mode is None:
        first = next((file for each in _folders(folder) for file in _images_in(each)), None)
        if first is None:
            raise _no_images(folder)
        image = _open(first)
        if mode is None and image.mode not in MODES:
            raise InputError(f"{first} is of mode {image.mode}, not {' or '.join(MODES)}.", fix=_DECLARE)
        size, mode = size or (image.height, image.width), mode or image.mode
    return ImageEncoder(size, mode, classes, resize=schema.size is not None, convert=schema.mode is not None)


def split_folder(path: Path) -> tuple[FilePath, FilePath | None]:
    """The folders of the training and of the test images: DIR/train and DIR/test, or DIR itself and none."""
    folder = _existing(path)
    names = {each.name for each in _folders(folder)}
    if names in ({"train"}, {"train", "test"}):
        return folder / "train", folder / "test" if "test" in names else None
    return folder, None


def _no_images(folder: FilePath) -> InputError:
    return InputError(f"There are no images in {folder}.", fix="Put them into a folder per class.")


def _open(file: FilePath) -> Image:
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415  # only images need it

    try:
        image = Image.open(file)
        with image:
            return image.copy()
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{file} cannot be read as an image: {error}.", fix="Replace or remove it.") from error


def _existing(path: Path) -> FilePath:
    folder = FilePath(path)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder.", fix="Give a folder that has a folder of images for each class.")
    return folder


def _visible(folder: FilePath) -> list[FilePath]:
    return sorted(each for each in folder.iterdir() if not each.name.startswith("."))


def _folders(folder: FilePath) -> list[FilePath]:
    """The folders in ``folder``; images beside them would belong to no class."""
    found = [each for each in _visible(folder) if each.is_dir()]
    stray = [each for each in _visible(folder) if not each.is_dir() and each.suffix.lower() in ENDINGS]
    if found and stray:
        raise InputError(f"{stray[0]} is in no class.", fix="Move it into the folder of its class.")
    return found


def _images_in(folder: FilePath) -> list[FilePath]:
    """The images of one class, or to predict from; anything else is named."""
    files = _visible(folder)
    for file in files:
        if file.is_dir() or file.suffix.lower() not in ENDINGS:
            raise InputError(
                f"{file} is not an image.",
                why="A folder of images holds those alone, so that none is passed over.",
                fix=f"Remove it, or save it as one of {', '.join(ENDINGS)}.",
            )
    return files
