"""Texts that ranks may print, log, raise or be called, and that no renderer may take for more than text."""

from __future__ import annotations

HTML = {
    "an element": "<b>bold</b>",
    "a script": "<script>window.attacked = true</script>",
    "an end of a script": "</script><script>window.attacked = true</script>",
    "an end of pre": "</pre></details></table></div><h1>out</h1><pre>",
    "an image that fails": '<img src=x onerror="window.attacked = true">',
    "an end of an attribute": '"\'><img src=x onerror=window.attacked=true> " onload="window.attacked=true',
    "a comment": "<!-- never ended",
    "a style": "<style>* { display: none }</style></style>",
    "CDATA": "]]><svg onload=window.attacked=true>",
    "entities": "&lt;script&gt; &amp; &#60;b&#62; &copy",
    "a frame": '<iframe src="javascript:window.parent.attacked = true"></iframe>',
    "a link": '<a href="javascript:window.attacked=true">click</a>',
    "a template": "${window.attacked = true} {{constructor}} [link](javascript:x) $\\href{x}$",
    "rich's markup": "[red]red[/red] [link=file:///etc]x[/link] [/] [bold",
}
"""What a page might run or draw."""

TERMINAL = {
    "colours": "\x1b[31mred\x1b[0m \x1b[1;38;5;208mbold\x1b[0m",
    "colours that stay": "\x1b[7;8;41mnever reset",
    "a cleared screen": "\x1b[2J\x1b[H\x1b[3J",
    "a moved cursor": "\x1b[10A\x1b[2K\rover",
    "a window's title": "\x1b]0;title\x07after",
    "a title without end": "\x1b]0;title",
    "a link of a terminal": "\x1b]8;;file:///etc/passwd\x1b\\text\x1b]8;;\x1b\\",
    "a clipboard": "\x1b]52;c;aGVsbG8=\x07",
    "an 8 bit code": "\x9b31mred\x9d0;title\x9c",
    "half a code": "\x1b[3",
    "a lone escape": "a\x1bb\x1b",
    "a code with a long number": "\x1b[" + "9" * 5000 + "m",
}
"""What a terminal might obey."""

UNSEEN = {
    "NUL": "a\x00b",
    "control characters": "".join(map(chr, range(32))) + "\x7f" + "".join(map(chr, range(0x80, 0xA0))),
    "returns": "one\rtwo\r\nthree\x0bfour\x0cfive\x85six\u2028seven\u2029eight",
    "an override": "\u202etxt.exe\u202c",
    "isolates": "\u2067abc\u2069 \u2066abc \u202dabc",
    "marks": "\u200fa\u200eb\u061cc",
    "right to left": "שלום 123 עולם (abc) مرحبا",
    "a lone surrogate": "\ud800 and \udcff",
    "a byte order mark": "\ufeffa\ufffeb\uffff",
    "joined": "e" + "\u0301" * 50 + " 👩‍👩‍👧 ﷽",
}
"""What is not seen but acts."""

LONG = {
    "a long line": "x" * 10_000_000,
    "a long line of markup": "<&>" * 1_000_000,
    "a long line of codes": "\x1b[31mx\x1b[0m" * 100_000,
    "a long line of four bytes": "😀" * 500_000,
    "a long line of surrogates": "\udcff" * 500_000,
    "many lines": "line\n" * 200_000,
    "spaces": " " * 1_000_000,
}
"""What takes room."""

HOSTILE = {**HTML, **TERMINAL, **UNSEEN, **LONG}
"""All of them."""

ACTING = "\x00\x07\x08\x0b\x0c\x1b\x7f\x85\x9b\x9d\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202d\u202e\u2066\u2067\ufeff"
"""Characters that nothing that is shown may hold: each of them acts without being seen."""
