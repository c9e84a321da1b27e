//! `{% generation %}` marks the assistant's own words for training. Inference only has to let its
//! body through, and the engine does not know the tag, so both ends are rewritten before
//! compiling: to `with`, which like Jinja2's call block opens a scope of its own. Lines keep their
//! numbers.

use std::borrow::Cow;

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

pub fn rewrite(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while !rest.is_empty() {
        let (len, is_block) = match next_piece(rest) {
            Piece::Text(len) | Piece::Other(len) => (len, false),
            Piece::Block(len) => (len, true),
        };
        let (piece, tail) = rest.split_at(len);
        rest = tail;
        if !is_block {
            out.push_str(piece);
            continue;
        }
        let (before, word, after) = tag_word(piece);
        let replacement = match word {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => word,
        };
        out.push_str(before);
        out.push_str(replacement);
        out.push_str(after);
        if word == "raw" {
            let (body, tail) = rest.split_at(raw_len(rest));
            out.push_str(body);
            rest = tail;
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::rewrite;

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
            rewrite(source);
        }
    }
}
