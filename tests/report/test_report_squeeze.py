from __future__ import annotations

from tracekit.report.squeeze import script, style


def test_strings_templates_and_expressions_stay_whole() -> None:
    text = r"""
    // a comment with "quotes"
    const a = "two  spaces // no comment",  b = 'it\'s /* none */ either';
    const c = `x  ${ a }  // kept`; /* gone */
    if (/^[/\s"]+ x$/.test(a)) return  a + +b - -c;
    const d = a / b / c;
    """
    assert script(text) == (
        "const a=\"two  spaces // no comment\",b='it\\'s /* none */ either';const c=`x  ${ a }  // kept`;"
        'if(/^[/\\s"]+ x$/.test(a))return a+ +b- -c;const d=a/b/c;'
    )


def test_line_ends_that_may_end_a_statement_stay() -> None:
    assert script("let a = 1\nlet b = [\n  2,\n]\n(c)\nreturn {\n  d\n}\ne") == "let a=1\nlet b=[2,]\n(c)\nreturn{d}\ne"


def test_style_keeps_the_spaces_of_selectors_and_values() -> None:
    text = "/* x */ .a  > .b , .c :hover { margin: 0  4px ; color: red; }\n@media (max-width: 9px) { .d { top: 0 } }"
    assert style(text) == ".a > .b ,.c :hover{margin:0 4px ;color:red}@media (max-width:9px){.d{top:0}}"
