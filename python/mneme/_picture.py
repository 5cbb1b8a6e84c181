"""A session as a picture of HTML."""
from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._session_arrays import LayerInfo, SessionArrays

WIDTH, HEIGHT = 360, 6  # of a layer's bar
COLORS = {"quantized": "#e0a030", "exact": "#3070b0"}


def exact_bytes(layer: LayerInfo, dtype: str) -> int:
    tokens = layer.held_tokens - layer.quantized_tokens
    return tokens * layer.num_key_value_heads * (layer.k_head_dim + layer.v_head_dim) * (4 if dtype == "f32" else 2)


def quantized_bytes(layer: LayerInfo) -> int:
    bits = layer.k_head_dim * layer.key_bits + layer.v_head_dim * layer.value_bits
    return layer.quantized_tokens * layer.num_key_value_heads * bits // 8


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
    sizes = [(quantized_bytes(layer), exact_bytes(layer, cache.dtype)) for layer in layers]
    most = max((sum(size) for size in sizes), default=0) or 1
    bars: list[str] = []
    for i, (layer, size) in enumerate(zip(layers, sizes)):
        title = f"layer {i}, {layer.kind}: {layer.held_tokens} of {layer.tokens} tokens, {size[0] + size[1]:,} bytes, {size[0]:,} of them quantized"
        if layer.kind == "state":
            title = f"layer {i}: a state after {layer.tokens} tokens"
        parts, x = "", 0.0
        for kind, n_bytes in zip(("quantized", "exact"), size):
            width = WIDTH * n_bytes / most
            parts += f'<rect x="{x:.1f}" y="{i * (HEIGHT + 1)}" width="{width:.1f}" height="{HEIGHT}" fill="{COLORS[kind]}"/>'
            x += width
        bars.append(f"<g><title>{escape(title)}</title>{parts}</g>")
    key = ", ".join(f'<span style="color:{COLORS[kind]}">&#9632;</span> {kind}' for kind in ("quantized", "exact"))
    return (f"<div><p>mneme.Session: {facts}</p>"
            f'<svg width="{WIDTH}" height="{len(layers) * (HEIGHT + 1)}" role="img" aria-label="bytes of each layer">{"".join(bars)}</svg>'
            f"<p><small>Bytes of each layer's keys and values, without states, scales and free room: {key}</small></p></div>")
