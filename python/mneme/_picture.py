"""A session as a picture of HTML."""
from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._session_arrays import LayerInfo, SessionArrays

WIDTH, HEIGHT = 360, 6  # of a bar
COLORS = {"quantized": "#e0a030", "exact": "#3070b0", "dropped": "#d0d0d0"}


def exact_bytes(layer: LayerInfo, dtype: str) -> int:
    tokens = layer.held_tokens - layer.quantized_tokens
    return tokens * layer.num_key_value_heads * (layer.k_head_dim + layer.v_head_dim) * (4 if dtype == "f32" else 2)


def quantized_bytes(layer: LayerInfo) -> int:
    bits = layer.k_head_dim * layer.key_bits + layer.v_head_dim * layer.value_bits
    return layer.quantized_tokens * layer.num_key_value_heads * bits // 8


def token_spans(layer: LayerInfo) -> list[tuple[str, int]]:
    """A layer's tokens from the first to the newest, in pieces of one kind."""
    first = min(layer.first_exact, layer.tokens)
    dropped = max(layer.first_held - first, 0)
    newest = layer.tokens - first - dropped - layer.quantized_tokens
    return [("exact", first), ("dropped", dropped), ("quantized", layer.quantized_tokens), ("exact", newest)]


def bar(spans: Sequence[tuple[str, float]], y: int) -> str:
    parts, x = "", 0.0
    for kind, width in spans:
        parts += f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT}" fill="{COLORS[kind]}"/>'
        x += width
    return parts


def token_strip(layers: list[LayerInfo]) -> str:
    """The tokens of the layer that holds the fewest."""
    paged = [(layer.held_tokens, i) for i, layer in enumerate(layers) if layer.kind == "self" and layer.tokens]
    if not paged:
        return ""
    i = min(paged)[1]
    spans = token_spans(layers[i])
    title = f"tokens of layer {i}, from the first to the newest: {', '.join(f'{n} {kind}' for kind, n in spans if n)}"
    drawn = bar([(kind, WIDTH * n / layers[i].tokens) for kind, n in spans], 0)
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="tokens"><g><title>{title}</title>{drawn}</g></svg>'


def session_picture(session: SessionArrays) -> str:
    if session.closed:
        return "<p>mneme.Session, closed</p>"
    cache = session.cache
    layers = [session.layer(i) for i in range(session.num_layers)]
    seen = max((layer.tokens for layer in layers), default=0)
    quantized = max((layer.quantized_tokens for layer in layers), default=0)
    facts = f"{escape(cache.implementation)}, {escape(cache.dtype)}: {cache.tokens} tokens held, {seen} seen, {quantized} quantized, {cache.bytes:,} bytes"
    if cache.offloaded_bytes:
        facts += f", {cache.offloaded_bytes:,} of them offloaded"
    if cache.unique_bytes + cache.offloaded_bytes < cache.bytes:
        facts += f", {cache.bytes - cache.unique_bytes - cache.offloaded_bytes:,} shared with other sessions or a file"
    sizes = [(quantized_bytes(layer), exact_bytes(layer, cache.dtype)) for layer in layers]
    most = max((sum(size) for size in sizes), default=0) or 1
    bars: list[str] = []
    for i, (layer, size) in enumerate(zip(layers, sizes)):
        title = f"layer {i}, {layer.kind}: {layer.held_tokens} of {layer.tokens} tokens, {size[0] + size[1]:,} bytes, {size[0]:,} of them quantized"
        if layer.kind == "state":
            title = f"layer {i}: a state after {layer.tokens} tokens"
        drawn = bar([(kind, WIDTH * n_bytes / most) for kind, n_bytes in zip(("quantized", "exact"), size)], i * (HEIGHT + 1))
        bars.append(f"<g><title>{escape(title)}</title>{drawn}</g>")
    key = ", ".join(f'<span style="color:{color}">&#9632;</span> {kind}' for kind, color in COLORS.items())
    return (f"<div><p>mneme.Session: {facts}</p><p>{token_strip(layers)}</p>"
            f'<svg width="{WIDTH}" height="{len(layers) * (HEIGHT + 1)}" role="img" aria-label="bytes of each layer">{"".join(bars)}</svg>'
            "<p><small>Tokens from the first to the newest; bytes of each layer's keys and values, without states, scales and free room: "
            f"{key}</small></p></div>")
