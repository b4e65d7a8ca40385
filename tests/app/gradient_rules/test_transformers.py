"""Hugging Face's models in miniature: every parameter by a rule, and exactly plain autograd's."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from agreement import built, compare

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

WORDS = 90
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": WORDS,
    "max_position_embeddings": 40,
}
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def encoder(name, p, **more):
    config = getattr(transformers, f"{name}Config")(**SIZES, **dict.fromkeys(DROPOUT, p), num_labels=3, **more)
    return getattr(transformers, f"{name}ForSequenceClassification")(config)


def decoder(name, p, **more):
    config = getattr(transformers, f"{name}Config")(
        **SIZES, num_key_value_heads=1, attention_dropout=p, pad_token_id=0, use_cache=False, **more
    )
    return getattr(transformers, f"{name}ForCausalLM")(config)


def distilbert(p, attention):
    config = transformers.DistilBertConfig(
        vocab_size=WORDS, dim=16, n_layers=2, n_heads=2, hidden_dim=24, dropout=p, attention_dropout=p,
        seq_classif_dropout=p, num_labels=3, max_position_embeddings=40, attn_implementation=attention,
    )  # fmt: skip
    return transformers.DistilBertForSequenceClassification(config)


def gpt2(p, attention):
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=40, resid_pdrop=p, embd_pdrop=p, attn_pdrop=p,
        bos_token_id=1, eos_token_id=1, use_cache=False, attn_implementation=attention,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def deberta(p, _):
    return encoder(
        "DebertaV2", p, relative_attention=True, pos_att_type=["p2c", "c2p"], share_att_key=True, position_buckets=8,
        position_biased_input=False, norm_rel_ebd="layer_norm", pooler_hidden_size=16, pooler_dropout=p,
    )  # fmt: skip


def vit(p, attention):
    sizes = {name: SIZES[name] for name in list(SIZES)[:4]}
    config = transformers.ViTConfig(
        **sizes, **dict.fromkeys(DROPOUT, p), image_size=8, patch_size=4, num_labels=3, attn_implementation=attention
    )
    return transformers.ViTForImageClassification(config)


def swin(p, _):
    config = transformers.SwinConfig(
        embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2, image_size=8, patch_size=2, num_labels=3,
        hidden_dropout_prob=p, drop_path_rate=0.0,
    )  # fmt: skip
    return transformers.SwinForImageClassification(config)


def t5(p, _):
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=p, use_cache=False
    )
    return transformers.T5ForConditionalGeneration(config)


MODELS = {
    "bert": lambda p, attention: encoder("Bert", p, attn_implementation=attention),
    "roberta": lambda p, attention: encoder("Roberta", p, attn_implementation=attention),
    "distilbert": distilbert,
    "deberta": deberta,
    "gpt2": gpt2,
    "llama": lambda p, attention: decoder("Llama", p, attn_implementation=attention),
    "mistral": lambda p, attention: decoder("Mistral", p, attn_implementation=attention),
    "qwen2": lambda p, attention: decoder("Qwen2", p, attn_implementation=attention),
    "gemma": lambda p, attention: decoder("Gemma", p, head_dim=8, attn_implementation=attention),
    "gemma2": lambda p, _: decoder("Gemma2", p, head_dim=8, attn_implementation="eager"),
    "vit": vit,
    "swin": swin,
    "t5": t5,
}


def classified(model, ids, mask, labels):
    return F.cross_entropy(model(input_ids=ids, attention_mask=mask).logits, labels, reduction="none")


def continued(model, ids, mask, _):
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def translated(model, ids, _, __):
    logits = model(input_ids=ids, decoder_input_ids=ids.flip(1)).logits
    return F.cross_entropy(logits.transpose(1, 2), ids, reduction="none").mean(1)


def seen(model, pixels, labels):
    return F.cross_entropy(model(pixel_values=pixels).logits, labels, reduction="none")


def made(name, p, attention="sdpa"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS[name](p, attention).train()
    labels = torch.tensor([0, 1, 2])
    if name in {"vit", "swin"}:
        return model, seen, (torch.randn(3, 3, 8, 8), labels)
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0
    loss = translated if name == "t5" else continued if hasattr(model, "lm_head") else classified
    return model, loss, (torch.randint(3, 60, (3, 7)), mask, labels)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_by_a_rule(name, attention):
    if attention == "eager" and name in {"deberta", "gemma2", "swin", "t5"}:
        pytest.skip("has one kind of attention here")
    model, loss, batch = made(name, 0.0, attention)
    engine = built(model, loss, batch)
    assert not engine.notes
    compare(engine, batch, rtol=2e-3, clamp=False)


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "vit", "t5"])
def test_every_parameter_by_a_rule_with_dropout(name):
    """The sum over records is plain autograd's for the masks that were drawn."""
    model, loss, batch = made(name, 0.1)
    engine = built(model, loss, batch)
    assert engine._blueprint.random
    torch.manual_seed(5)
    sums = engine.capture(batch).weighted_sums(torch.ones(3, 1), [list(engine.names)])
    torch.manual_seed(5)
    loss(model, *batch).sum().backward()
    largest = max(float(value.grad.norm()) for value in model.parameters())
    for key, value in model.named_parameters():
        torch.testing.assert_close(sums[key], value.grad, rtol=1e-3, atol=1e-5 * largest)


def test_a_tied_table_is_never_made_for_every_record():
    model, loss, batch = made("gpt2", 0.0)
    pieces = built(model, loss, batch).capture(batch).pieces
    (table,) = [each for each in pieces if any(t.name == "transformer.wte.weight" for t in each.targets.values())]
    assert table.closed_form is not None


def test_half_precision_weights():
    model, loss, batch = made("bert", 0.0)
    engine = built(model.bfloat16(), loss, batch)
    assert engine.capture(batch).square_norms([list(engine.names)]).dtype == torch.float32
