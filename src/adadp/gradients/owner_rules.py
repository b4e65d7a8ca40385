"""What a kernel does to the owners of numbers: for each, which numbers of its arguments a number of its result sees.

A rule may name more owners than needed, never fewer. Kernels that work number by number say so themselves
(``torch.Tag.pointwise``); views share their memory and need no rule; a kernel that is not here joins everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

NOBODY, MIXED = -1, 32000
"""Owners that are no record: of a constant, and of what several records made."""


class Arguments:
    """The arguments of one call of a kernel by their names, the owners of its tensors, and the results ``made``."""

    def __init__(
        self, schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any], owners: Callable[[Tensor], Tensor]
    ) -> None:
        self.made: Sequence[Tensor] = ()
        self._schema = schema
        self._values = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
        self._values |= dict(zip((each.name for each in schema.arguments), args, strict=False)) | dict(kwargs)
        self.owners_of = owners

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def tensors(self) -> list[Tensor]:
        """All of them, those in lists too."""
        return [leaf for leaf in tree_leaves(self._values) if isinstance(leaf, Tensor)]

    def written(self) -> list[Tensor]:
        """Those the kernel writes into."""
        names = [each.name for each in self._schema.arguments if each.alias_info and each.alias_info.is_write]
        return [leaf for name in names for leaf in tree_leaves(self._values.get(name)) if isinstance(leaf, Tensor)]

    def owners(self, name: str) -> Tensor:
        """Of the tensor called ``name``; nobody if there is none."""
        value = self._values.get(name)
        return self.owners_of(value) if isinstance(value, Tensor) else _NOBODY

    def others(self, *names: str) -> Tensor:
        """The join of all tensors but those called ``names``."""
        rest = {name: value for name, value in self._values.items() if name not in names}
        return joined([self.owners_of(leaf) for leaf in tree_leaves(rest) if isinstance(leaf, Tensor)])

    def picks_by_truth(self) -> bool:
        """Whether an index keeps the elements where a mask of records is true: the size of the result tells of it."""
        masks = [each for each in self["indices"] if _is_mask(each)]
        return any(bool((self.owners_of(mask) != NOBODY).any()) for mask in masks)


Rule = Callable[[Arguments], "Tensor | list[Tensor] | None"]
"""The owners of what was made or written, which broadcast: of all of it, or of each; None: no idea."""

_NOBODY = torch.full((), NOBODY, dtype=torch.int16)


def join(first: Tensor, second: Tensor) -> Tensor:
    """The owners of what is made of two numbers, element by element."""
    either = torch.where(first == NOBODY, second, first)
    return torch.where((second == NOBODY) | (first == second), either, torch.where(first == NOBODY, second, MIXED))


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The one owner of everything that is made of all numbers of ``parts``."""
    return reduce(join, (over(part, range(part.dim())).reshape(()) for part in parts), _NOBODY)


def over(owners: Tensor, dims: Sequence[int]) -> Tensor:
    """The join over ``dims``, which are kept with one element."""
    dims = sorted({dim % max(1, owners.dim()) for dim in dims})
    if not dims or not owners.dim():
        return owners
    if owners.numel() == 0:
        kept = [1 if dim in dims else size for dim, size in enumerate(owners.shape)]
        return _NOBODY.expand(kept)
    most = owners.amax(dims, keepdim=True)
    least = torch.where(owners == NOBODY, MIXED, owners).amin(dims, keepdim=True)
    return torch.where((most == NOBODY) | (least == most), most, MIXED).to(torch.int16)


def rule_for(name: str, func: Any) -> Rule | None:
    """The rule of the kernel ``name``, None if there is none."""
    plain = name if name in _RULES else name.removesuffix("_")
    if plain in _RULES:
        return _RULES[plain]
    if torch.Tag.pointwise in func.tags:
        return _pointwise
    if plain.startswith("new_") or plain.endswith("_like"):
        return _constant
    return None


def _pointwise(given: Arguments) -> Tensor:
    return reduce(join, map(given.owners_of, given.tensors()), _NOBODY)


def _constant(given: Arguments) -> Tensor:  # noqa: ARG001
    return _NOBODY


def _dropout(given: Arguments) -> list[Tensor]:
    return [given.owners("input"), *[_NOBODY] * (len(given.made) - 1)]


def _rows(*names: str, kept: int = 1) -> Rule:
    """The first ``kept`` dimensions of the results are those of the tensors ``names``; the rest is joined."""

    def rule(given: Arguments) -> list[Tensor]:
        total = given.others(*names).expand((1,) * kept)
        for name in names:
            owners = given.owners(name)
            whole = owners.dim() <= kept  # too few dimensions to have these in front
            total = join(
                total, joined([owners]) if whole else over(owners, range(kept, owners.dim())).flatten(kept - 1)
            )
        return [
            total.reshape(total.shape + (1,) * (each.dim() - kept))
            if each.shape[:kept] == total.shape
            else joined([total])
            for each in given.made
        ]

    return rule


def _attended(given: Arguments) -> Tensor | list[Tensor] | None:
    """Batches and heads keep apart, or batches alone where queries have more heads than keys."""
    names = ("query", "key", "value", "attn_mask", "attn_bias")
    heads = {given[name].shape[1] for name in names[:3]}
    return _rows(*names, kept=2 if len(heads) == 1 else 1)(given)


def _lines(given: Arguments) -> list[Tensor]:
    """Everything along ``dim`` is joined, whether the dimension is kept (softmax, sort), reduced or left out."""
    owners, dims = given.owners("self"), given.get("dim")
    dims = [dims] if isinstance(dims, int) else list(dims or range(owners.dim()))
    total = join(over(owners, dims), given.others("self"))
    left = _without_dims(total, dims) if owners.dim() else total
    return [total if each.dim() == owners.dim() else left for each in given.made]


def _without_dims(owners: Tensor, dims: Sequence[int]) -> Tensor:
    """``owners`` without ``dims``, which have one element."""
    gone = {dim % owners.dim() for dim in dims}
    return owners.reshape([size for dim, size in enumerate(owners.shape) if dim not in gone])


def _normalised(given: Arguments) -> Tensor:
    owners = given.owners("input")
    lines = range(owners.dim() - len(given["normalized_shape"]), owners.dim())
    return join(over(owners, lines), given.others("input"))


def _batch_normalised(given: Arguments) -> list[Tensor]:
    owners = given.owners("input")
    if given.get("training", given.get("use_input_stats", False)):
        owners = over(owners, [dim for dim in range(owners.dim()) if dim != 1])
    total = join(owners, given.others("input"))
    return [total if each.dim() == total.dim() else joined([total]) for each in given.made]


def _product(left: str, right: str) -> Rule:
    def rule(given: Arguments) -> Tensor:
        rows, columns = over(given.owners(left), [-1]), given.owners(right)
        if columns.dim() == 1:
            rows, columns = rows.squeeze(-1), over(columns, [-1])
        else:
            columns = over(columns, [-2])
        added = given.others(left, right) if left == "self" else given.owners("self")
        return join(join(rows, columns), added)

    return rule


def _trilinear(given: Arguments) -> Tensor:
    total = _NOBODY
    for name, dims in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        owners = given.owners(name)
        for dim in sorted(given[dims]):
            owners = owners.unsqueeze(dim)
        total = join(total, owners)
    return _without_dims(over(total, given["sumdim"]), given["sumdim"])


def _loss(given: Arguments) -> Tensor:
    total = _pointwise(given)
    return total if given["reduction"] == 0 else joined([total])


def _class_loss(given: Arguments) -> list[Tensor]:
    scores = given.owners("self")
    total = over(scores, [1]).squeeze(1) if scores.dim() > 1 else over(scores, [0])
    total = join(join(total, given.owners("target")), given.others("self", "target"))
    apart = given["reduction"] == 0
    return [total if apart and each.dim() == total.dim() else joined([total]) for each in given.made]


def _recurrent(given: Arguments) -> list[Tensor]:
    """``[time, records, ...]``; states are ``[records, width]``."""
    total = join(over(given.owners("input"), [0, 2]), given.others("input", "hx_", "cx_"))
    for name in ("hx_", "cx_"):
        total = join(total, over(given.owners(name), [-1]).reshape(1, -1, 1))
    by_dimensions = {3: total, 2: total.reshape(-1, 1)}
    return [by_dimensions.get(each.dim(), joined([total])) for each in given.made]


def _concatenated(given: Arguments) -> Tensor:
    parts = [given.owners_of(each) for each in given["tensors"] if each.shape != (0,)]
    return torch.cat(parts, given["dim"]) if parts else _NOBODY


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _reached(given: Arguments, owners: Tensor, dim: int, index: Tensor) -> Tensor:
    """What ``index`` may pick along ``dim``: anything, if it depends on a record."""
    public = not bool((given.owners_of(index) != NOBODY).any())
    return owners if public else over(owners, [dim]).expand(owners.shape)


def _indexed(given: Arguments) -> Tensor | None:
    owners, indices = given.owners("self"), list(given["indices"])
    if any(_is_mask(each) for each in indices):  # of records: lost; of nobody: rare
        return None
    chosen = _NOBODY
    places = [dim for dim, index in enumerate(indices) if index is not None]
    for dim in places:
        owners = _reached(given, owners, dim, indices[dim])
        chosen = join(chosen, given.owners_of(indices[dim]))
    adjacent = places == list(range(places[0], places[-1] + 1))
    before = places[0] if adjacent else 0
    after = owners.dim() - len(places) - before
    picked = owners[tuple(slice(None) if index is None else index.cpu() for index in indices)]
    return join(picked, chosen.reshape((1,) * before + tuple(chosen.shape) + (1,) * after))


def _gathered(given: Arguments) -> Tensor:
    dim, index = given["dim"], given["index"]
    owners = _reached(given, given.owners("self"), dim, index)
    return join(owners.gather(dim, index.cpu()) if owners.dim() else owners, given.owners_of(index))


def _selected(given: Arguments) -> Tensor:
    dim, index = given["dim"], given["index"]
    owners = _reached(given, given.owners("self"), dim, index)
    shape = [1] * max(1, owners.dim())
    shape[dim] = -1
    return join(owners.index_select(dim, index.reshape(-1).cpu()), given.owners_of(index).reshape(shape))


def _scattered(given: Arguments) -> Tensor | None:
    """Along ``dim`` everything is joined: what was there, what comes, and the index that says where."""
    owners, dim = given.owners("self"), given["dim"]
    if given.owners("index").dim() != owners.dim() or not owners.dim():
        return None
    total = over(owners, [dim])
    for part in (given.owners("index"), given.owners("src")):
        if part.dim():
            lines = over(part, [dim])
            if lines.shape != total.shape:
                return None
            total = join(total, lines)
    return join(total, given.others("self", "index", "src"))


def _put(given: Arguments) -> Tensor | None:
    """Into places that are public, or one number wherever a mask says so."""
    owners, indices, values = given.owners("self"), list(given["indices"]), given.owners("values")
    if len(indices) == 1 and _is_mask(indices[0]) and given["values"].numel() == 1:
        mask = given.owners_of(indices[0])
        mask = mask.reshape(tuple(mask.shape) + (1,) * (owners.dim() - mask.dim()))
        return join(join(owners, mask), values.reshape(()))
    if any(_is_mask(each) or bool((given.owners_of(each) != NOBODY).any()) for each in indices if each is not None):
        return None
    places = tuple(slice(None) if each is None else each.cpu() for each in indices)
    result = owners.clone()
    result[places] = join(owners[places], values) if given["accumulate"] else values
    return result


def _into_slice(given: Arguments) -> Tensor:
    arguments = [given[name] for name in ("dim", "start", "end", "step")]
    return torch.slice_scatter(given.owners("self").clone(), given.owners("src").clone(), *arguments)


def _into_place(given: Arguments) -> Tensor:
    return given.owners("self").clone().select_scatter(given.owners("src").clone(), given["dim"], given["index"])


_KERNELS: dict[Rule, str] = {
    _constant: "empty full zeros ones zero_ normal_ uniform_ random_ exponential_ log_normal_",
    _pointwise: "clone _to_copy masked_fill lift_fresh detach alias tril triu bernoulli _prelu_kernel complex polar",
    lambda given: given.owners("src"): "copy_ copy",
    lambda given: given.owners("value"): "fill_",
    _dropout: "native_dropout",
    _lines: (
        "sum nansum mean prod amax amin aminmax max min argmax argmin any all var std var_mean std_mean logsumexp "
        "linalg_vector_norm norm count_nonzero median _softmax _log_softmax _safe_softmax cumsum cumprod cummax "
        "cummin logcumsumexp sort argsort topk kthvalue mode _fft_r2c _fft_c2r _fft_c2c glu"
    ),
    lambda given: over(given.owners("self"), [-1]): "multinomial",
    _normalised: "native_layer_norm _fused_rms_norm",
    _batch_normalised: (
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm "
        "_native_batch_norm_legit_no_training"
    ),
    _rows("input"): "native_group_norm convolution _convolution cudnn_convolution",
    _rows("self"): (
        "max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d max_pool2d "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d reflection_pad1d "
        "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d im2col col2im "
        "pixel_shuffle pixel_unshuffle channel_shuffle upsample_nearest1d upsample_nearest2d upsample_nearest3d "
        "_upsample_nearest_exact1d _upsample_nearest_exact2d upsample_linear1d upsample_bilinear2d upsample_bicubic2d "
        "upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
    ),
    _rows("input", "grid"): "grid_sampler_2d grid_sampler_3d",
    _rows("theta"): "affine_grid_generator",
    _rows("input_gates", "hidden_gates", "cx"): "_thnn_fused_lstm_cell",
    _rows("input_gates", "hidden_gates", "hx"): "_thnn_fused_gru_cell",
    _recurrent: "mkldnn_rnn_layer",
    _attended: (
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math"
    ),
    _product("self", "mat2"): "mm bmm",
    _product("self", "vec"): "mv",
    _product("mat1", "mat2"): "addmm",
    _product("mat", "vec"): "addmv",
    _product("batch1", "batch2"): "baddbmm",
    _trilinear: "_trilinear",
    _loss: "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss",
    _class_loss: "nll_loss_forward nll_loss2d_forward nll_loss_nd",
    _concatenated: "cat",
    lambda given: torch.stack([given.owners_of(each) for each in given["tensors"]], given["dim"]): "stack",
    lambda given: given.owners("self").flip(given["dims"]): "flip",
    lambda given: given.owners("self").roll(given["shifts"], given["dims"]): "roll",
    lambda given: given.owners("self").repeat(given["repeats"]): "repeat",
    _indexed: "index _unsafe_index",
    _gathered: "gather",
    _selected: "index_select",
    _scattered: "scatter scatter_add scatter_reduce",
    _put: "index_put _index_put_impl _unsafe_index_put",
    lambda given: join(given.owners("indices").unsqueeze(-1), given.others("indices")): "embedding",
    lambda given: torch.constant_pad_nd(given.owners("self"), given["pad"], NOBODY): "constant_pad_nd",
    _into_slice: "slice_scatter",
    _into_place: "select_scatter",
}
"""The kernels of each rule."""
_RULES = {name: rule for rule, names in _KERNELS.items() for name in names.split()}
