//! What happens to a template's text before it is compiled.
//!
//! `{% generation %}` marks the assistant's own words for training. Inference only has to let its
//! body through, and the engine does not know the tag, so both ends are rewritten: to `with`,
//! which like Jinja2's call block opens a scope of its own. Lines keep their numbers.
//!
//! The engine's compiler recurses over an expression as long as it is (`1+1+...`) and over a chain
//! of `elif`, so both are bounded here.

use crate::sentry::SAME;

/// The longest tag of the templates in use has about 150.
const TAG_TOKENS_MAX: usize = 2000;
/// The longest chain in use has about 10; counted over the whole template.
const ELIF_COUNT_MAX: usize = 1000;

/// What a piece of the source is, with the length it covers.
enum Piece {
    Text(usize),
    Block(usize),
    Other(usize),
}

/// Length up to and with the closing delimiter, which does not count inside a string.
fn tag_len(source: &str, close: &str) -> usize {
    let bytes = source.as_bytes();
    let mut quote = 0u8;
    let mut at = 2;
    while at < bytes.len() {
        let byte = bytes[at];
        if quote != 0 {
            match byte {
                b'\\' => at += 1,
                _ if byte == quote => quote = 0,
                _ => {}
            }
        } else if byte == b'\'' || byte == b'"' {
            quote = byte;
        } else if bytes[at..].starts_with(close.as_bytes()) {
            return at + close.len();
        }
        at += 1;
    }
    bytes.len()
}

fn next_piece(source: &str) -> Piece {
    if source.starts_with("{%") {
        Piece::Block(tag_len(source, "%}"))
    } else if source.starts_with("{{") {
        Piece::Other(tag_len(source, "}}"))
    } else if source.starts_with("{#") {
        Piece::Other(source.find("#}").map_or(source.len(), |end| end + 2))
    } else {
        let first = source.chars().next().map_or(0, char::len_utf8);
        Piece::Text(
            source[first..]
                .find('{')
                .map_or(source.len(), |end| end + first),
        )
    }
}

/// `{%- word -%}` taken apart: what stands before the word, the word, and the rest.
fn tag_word(tag: &str) -> (&str, &str, &str) {
    let rest = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let start = tag.len() - rest.len();
    let end = rest
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    (&tag[..start], &rest[..end], &rest[end..])
}

/// Length up to the tag that ends a raw block, which the engine reads by itself.
fn raw_len(source: &str) -> usize {
    let mut at = 0;
    while let Some(found) = source[at..].find("{%") {
        at += found;
        if tag_word(&source[at..]).1 == "endraw" {
            return at;
        }
        at += 2;
    }
    source.len()
}

/// How many tokens a tag has at most: every run of word characters, every string and every other
/// character but space is one.
fn count_tokens(tag: &str) -> usize {
    let mut count = 0;
    let mut in_word = false;
    let mut characters = tag.chars();
    while let Some(c) = characters.next() {
        let is_word = c.is_alphanumeric() || c == '_';
        if (is_word && !in_word) || !(is_word || c.is_whitespace()) {
            count += 1;
        }
        in_word = is_word;
        if c == '\'' || c == '"' {
            while let Some(inside) = characters.next().filter(|inside| *inside != c) {
                if inside == '\\' {
                    characters.next();
                }
            }
        }
    }
    count
}

fn check_tag(tag: &str, source: &str) -> Result<(), String> {
    if count_tokens(tag) <= TAG_TOKENS_MAX {
        return Ok(());
    }
    let offset = tag.as_ptr() as usize - source.as_ptr() as usize;
    let line = source[..offset].matches('\n').count() + 1;
    Err(format!(
        "a tag has more than {TAG_TOKENS_MAX} tokens (line {line})"
    ))
}

/// Appends `tag` with `|kun_same` before every `*` beside a bracket, see sentry.rs.
fn push_unfolded(out: &mut String, tag: &str) {
    let mut quote = None;
    let mut previous = ' ';
    let mut before = ' ';
    for (at, c) in tag.char_indices() {
        if quote.is_none() && c == '*' && previous != '*' && !tag[at + 1..].starts_with('*') {
            let next = tag[at + 1..].trim_start();
            let is_operator = before != '(' && before != ',';
            if is_operator && (matches!(before, ')' | ']') || next.starts_with(['(', '['])) {
                out.push('|');
                out.push_str(SAME);
                out.push(' ');
            }
        }
        out.push(c);
        match quote {
            Some(mark) if c == mark && previous != '\\' => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None => {}
        }
        // A pair of backslashes does not escape what follows it.
        previous = if c == '\\' && previous == '\\' {
            ' '
        } else {
            c
        };
        if !c.is_whitespace() {
            before = c;
        }
    }
}

/// The source that the engine compiles, or why it should not.
pub fn prepare(source: &str) -> Result<String, String> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut elif_count = 0;
    while !rest.is_empty() {
        let piece = next_piece(rest);
        let (Piece::Text(len) | Piece::Other(len) | Piece::Block(len)) = piece;
        let (text, tail) = rest.split_at(len);
        rest = tail;
        if let Piece::Text(_) = piece {
            out.push_str(text);
            continue;
        }
        if let Piece::Other(_) = piece {
            if text.starts_with("{{") {
                check_tag(text, source)?;
                push_unfolded(&mut out, text);
            } else {
                out.push_str(text);
            }
            continue;
        }
        check_tag(text, source)?;
        let (before, word, after) = tag_word(text);
        out.push_str(before);
        out.push_str(match word {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => word,
        });
        push_unfolded(&mut out, after);
        elif_count += usize::from(word == "elif");
        if word == "raw" {
            let (body, tail) = rest.split_at(raw_len(rest));
            out.push_str(body);
            rest = tail;
        }
    }
    if elif_count > ELIF_COUNT_MAX {
        return Err(format!("more than {ELIF_COUNT_MAX} elif"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(source: &str) -> String {
        prepare(source).unwrap_or_default()
    }

    #[test]
    fn both_ends_become_a_scope_with_their_whitespace_control() {
        assert_eq!(
            rewrite("a{%- generation -%}b{% endgeneration +%}"),
            "a{%- with -%}b{% endwith +%}"
        );
    }

    #[test]
    fn text_strings_comments_and_raw_blocks_stay() {
        for source in [
            "generation {{ '{% generation %}' }}",
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{% if add_generation_prompt %}generation{% endif %}",
            "{% set x = '\\'%}{% generation %}' %}é{",
        ] {
            assert_eq!(rewrite(source), source);
        }
    }

    #[test]
    fn unfinished_tags_end_with_the_source() {
        for source in [
            "{% generation",
            "{{ 'generation",
            "{# generation",
            "{%generation",
        ] {
            assert_eq!(
                rewrite(source).len(),
                source.len() - if source.starts_with("{%") { 6 } else { 0 }
            );
        }
    }

    #[test]
    fn products_beside_brackets_are_not_folded() {
        for (source, prepared) in [
            ("{{ [1] * 9 }}", "{{ [1] |kun_same * 9 }}"),
            ("{{ 9*(1,) }}", "{{ 9|kun_same *(1,) }}"),
            (
                "{% set x = f(*[1], **{}) * 2 %}",
                "{% set x = f(*[1], **{}) |kun_same * 2 %}",
            ),
            ("{{ '[1]*2' * 3 ** (2) }}", "{{ '[1]*2' * 3 ** (2) }}"),
            ("{{ '\\'' ~ [1]*2 }}", "{{ '\\'' ~ [1]|kun_same *2 }}"),
        ] {
            assert_eq!(rewrite(source), prepared);
        }
    }

    #[test]
    fn long_expressions_are_refused_and_long_strings_are_not() {
        assert!(prepare(&format!("{{{{ 1{} }}}}", "+1".repeat(1500))).is_err());
        assert!(
            prepare(&format!("\n{{% set x = {} 1 %}}", "not ".repeat(3000)))
                .is_err_and(|why| why.ends_with("(line 2)"))
        );
        assert!(prepare(&format!("{{{{ '{}' }}}}", "+1".repeat(1500))).is_ok());
        assert!(prepare(&format!("{{# {} #}}", "+1".repeat(1500))).is_ok());
        assert!(prepare(&"{% elif 1 %}".repeat(1001)).is_err());
    }
}
