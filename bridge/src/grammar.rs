//! Grammars over the tokens of a vocabulary: which tokens may come next, by llguidance. A Grammar
//! is compiled once and shared; each sequence has a State, a position in it that is cheap to copy.
//! States of one Grammar share its lexer, so what one of them has computed the others find.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use llguidance::api::{GrammarInit, GrammarWithLexer, ParserLimits, StopReason, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    InferenceCapabilities, SimpleVob, TokRxInfo, TokTrie, TokenId, TokenizerEnv, INVALID_TOKEN,
};
use llguidance::{Logger, ParserFactory, TokenParser};
use serde_json::{json, Value};

use crate::schema;

/// Text longer than this is refused before anything reads it.
const SOURCE_BYTES_MAX: usize = 512 << 10;
const SCHEMAS_MAX: usize = 128;
const WHITESPACE_BYTES_MAX: usize = 256;
const REGEX_BYTES_MAX: usize = 32 << 10;
const NESTING_MAX: usize = 64;
const RULES_MAX: usize = 4_000;

/// llguidance follows rules and references by recursion, thousands deep within the limits here.
/// Memory of a stack is only taken as far as it is used.
const STACK_BYTES: usize = 256 << 20;

/// JSON allows white space without end, and small models can get lost in it.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

struct Tokens {
    trie: TokTrie,
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }
    /// The model chooses how to spell what the grammar demands.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

pub struct Vocabulary {
    factory: ParserFactory,
    size: usize,
}

impl Vocabulary {
    /// What each token stands for; special ones are spelled but never taken for text.
    pub fn new<'a>(
        tokens: impl Iterator<Item = (&'a [u8], bool)>,
        size: usize,
    ) -> Result<Vocabulary, String> {
        let words: Vec<Vec<u8>> = tokens
            .map(|(bytes, special)| match (bytes.first(), special) {
                (None, _) => Vec::new(),
                (_, true) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                // The marker is no byte of UTF-8: a token that begins with it cannot be in text.
                (Some(&TokTrie::SPECIAL_TOKEN_MARKER), _) => Vec::new(),
                _ => bytes.to_vec(),
            })
            .collect();
        if words.len() != size || words.iter().all(Vec::is_empty) {
            return Err("the vocabulary is empty".into());
        }
        let count = u32::try_from(size).map_err(|_| "the vocabulary is too large".to_string())?;
        // Whoever samples knows the end tokens; here no token is one.
        let trie = TokTrie::from(&TokRxInfo::new(count, INVALID_TOKEN), &words);
        let environment: Arc<dyn TokenizerEnv + Sync> = Arc::new(Tokens { trie });
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .map_err(|e| clean(&e))?;
        Ok(Vocabulary { factory, size })
    }
}

#[derive(Clone, Copy)]
pub enum Kind {
    Json,
    Regex,
    Lark,
}

pub struct Source<'a> {
    pub kind: Kind,
    pub text: &'a str,         // a regular expression, or Lark
    pub schemas: Vec<&'a str>, // Json: the one; Lark: those it names @schema_0 and so on
    pub compact: bool,         // no white space in JSON
    pub whitespace: &'a str,   // a regular expression for it, or empty
    pub no_additional_properties: bool,
}

#[derive(Clone, Copy)]
pub struct Limits {
    pub compile_steps_max: u64,
    pub mask_steps_max: u64,
    pub symbols_max: usize,
    pub lexer_states_max: usize,
}

impl Limits {
    fn to_parser(self) -> ParserLimits {
        ParserLimits {
            max_items_in_row: 2_000,
            initial_lexer_fuel: self.compile_steps_max,
            step_lexer_fuel: self.mask_steps_max,
            step_max_items: 50_000,
            max_lexer_states: self.lexer_states_max,
            max_grammar_size: self.symbols_max,
            precompute_large_lexemes: true,
            verbose_errors: false,
        }
    }
}

/// An error's own words: without the state and stack that llguidance appends.
fn clean(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let end = ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"]
        .iter()
        .filter_map(|mark| text.find(mark))
        .min()
        .unwrap_or(text.len());
    if text.contains("coerce_one_of") {
        return "the schema keyword \"oneOf\" is supported only where no value can satisfy two of \
                its parts; anyOf has no such rule"
            .into();
    }
    let words: Vec<&str> = text[..end].split_whitespace().collect();
    words.join(" ").chars().take(600).collect()
}

/// llguidance drops a backslash with nothing behind it.
pub fn check_regex_end(pattern: &str) -> Result<(), String> {
    let text = pattern.trim_end_matches('\\');
    if (pattern.len() - text.len()) % 2 == 1 {
        return Err("a regular expression ends in a backslash that escapes nothing".into());
    }
    Ok(())
}

fn json_grammar(text: &str, source: &Source) -> Result<GrammarWithLexer, String> {
    let mut schema: Value =
        serde_json::from_str(text).map_err(|e| format!("the schema is not valid JSON: {e}"))?;
    let options = schema::Options {
        no_additional_properties: source.no_additional_properties,
    };
    schema::prepare(&mut schema, options)?;
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    let Some(map) = schema.as_object_mut() else {
        return Err("the schema is false, and nothing satisfies it".into());
    };
    let whitespace = match source.whitespace {
        "" => WHITESPACE,
        own if own.len() > WHITESPACE_BYTES_MAX => {
            return Err(format!(
                "whitespace_pattern is longer than {WHITESPACE_BYTES_MAX} bytes"
            ))
        }
        own => {
            check_regex_end(own)?;
            own
        }
    };
    // With \u allowed a key could be spelled in escapes, past the schema of its property.
    let mut extra = json!({"json_allowed_escapes": "nrbtf\\\""});
    if source.compact {
        extra["whitespace_flexible"] = json!(false);
    } else {
        extra["whitespace_pattern"] = json!(whitespace);
    }
    map.insert("x-guidance".into(), extra);
    Ok(GrammarWithLexer::from_json_schema(schema))
}

fn top_level(source: &Source) -> Result<TopLevelGrammar, String> {
    let bytes: usize = source.text.len() + source.schemas.iter().map(|s| s.len()).sum::<usize>();
    if bytes > SOURCE_BYTES_MAX {
        return Err(format!(
            "the grammar has {bytes} bytes, at most {SOURCE_BYTES_MAX} are accepted"
        ));
    }
    if source.schemas.len() > SCHEMAS_MAX {
        return Err(format!(
            "the grammar has {} schemas, at most {SCHEMAS_MAX} are accepted",
            source.schemas.len()
        ));
    }
    let main = match source.kind {
        Kind::Json => {
            let [schema] = source.schemas[..] else {
                return Err("one schema is needed".into());
            };
            return Ok(TopLevelGrammar::from_grammar(json_grammar(schema, source)?));
        }
        Kind::Regex if source.text.len() > REGEX_BYTES_MAX => {
            return Err(format!(
                "the regular expression is longer than {REGEX_BYTES_MAX} bytes"
            ))
        }
        Kind::Regex => {
            check_regex_end(source.text)?;
            return Ok(TopLevelGrammar::from_regex(source.text));
        }
        Kind::Lark if source.text.contains("x-guidance") => {
            return Err("a grammar may not contain \"x-guidance\"".into())
        }
        Kind::Lark => {
            check_lark(source.text)?;
            GrammarWithLexer::from_lark(source.text.to_string())
        }
    };
    let mut grammars = vec![main];
    for (index, text) in source.schemas.iter().enumerate() {
        let mut grammar = json_grammar(text, source)?;
        grammar.name = Some(format!("schema_{index}"));
        grammars.push(grammar);
    }
    Ok(TopLevelGrammar {
        grammars,
        max_tokens: None,
    })
}

/// Bounds how deep a parser of Lark must recurse. Brackets and colons in strings count as well:
/// there cannot be fewer than this finds.
fn check_lark(text: &str) -> Result<(), String> {
    let mut depth = 0usize;
    let mut deepest = 0;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > NESTING_MAX {
        return Err(format!("brackets are nested deeper than {NESTING_MAX}"));
    }
    if text.bytes().filter(|byte| *byte == b':').count() > RULES_MAX {
        return Err(format!("there are more than {RULES_MAX} rules"));
    }
    Ok(())
}

fn on_large_stack<T: Send>(body: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let worker = thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, body)
            .map_err(|e| format!("it cannot be compiled now: {e}"))?;
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

pub struct Grammar {
    start: TokenParser,
    first_mask: SimpleVob, // computed once: every sequence begins with it
    own_bytes: usize,
}

impl Grammar {
    pub fn compile(
        vocabulary: &Vocabulary,
        source: &Source,
        limits: Limits,
    ) -> Result<Grammar, String> {
        on_large_stack(|| Self::compile_here(vocabulary, source, limits))
    }

    fn compile_here(
        vocabulary: &Vocabulary,
        source: &Source,
        limits: Limits,
    ) -> Result<Grammar, String> {
        let grammar = top_level(source)?;
        let mut start = vocabulary
            .factory
            .create_parser_from_init_ext(
                GrammarInit::Serialized(grammar),
                Logger::new(0, 0),
                InferenceCapabilities::default(),
                limits.to_parser(),
            )
            .map_err(|e| clean(&e))?;
        start.start_without_prompt();
        let source_bytes =
            source.text.len() + source.schemas.iter().map(|s| s.len()).sum::<usize>();
        let mut grammar = Grammar {
            start,
            first_mask: SimpleVob::alloc(vocabulary.size),
            own_bytes: 64 * source_bytes + vocabulary.size / 8 + (64 << 10),
        };
        if grammar.start.check_stop().map_err(|e| clean(&e))? {
            return Ok(grammar); // the empty text is all it allows
        }
        match grammar.start.compute_mask() {
            Ok(mask) => grammar.first_mask = mask,
            Err(_) if grammar.start.is_accepting() => {}
            Err(e) if grammar.start.stop_reason() == StopReason::NoExtensionBias => {
                return Err(format!("no token can begin it ({})", clean(&e)))
            }
            Err(e) => return Err(clean(&e)),
        }
        Ok(grammar)
    }

    /// An estimate. Grows while states of the grammar are in use; usize::MAX when their lexer,
    /// which they share, has passed a limit, so that it is of no more use to anyone.
    pub fn bytes(&self) -> usize {
        let stats = self.start.parser.lexer_stats();
        if stats.error {
            return usize::MAX;
        }
        // A lexer state takes 1 to 2 KB (llguidance, api.rs).
        self.own_bytes + stats.num_bytes + 1_500 * stats.num_states
    }

    pub fn state(self: &Arc<Grammar>) -> State {
        State {
            grammar: self.clone(),
            parser: self.start.clone(),
            fresh: true,
        }
    }
}

#[derive(Clone)]
pub struct State {
    grammar: Arc<Grammar>,
    parser: TokenParser,
    fresh: bool, // no token was consumed
}

impl State {
    /// Sets the bits of the tokens that may come next. None may when the grammar has ended.
    pub fn mask(&mut self, bits: &mut [u32]) -> Result<(), String> {
        bits.fill(0);
        let mut copy = |mask: &SimpleVob| {
            for (to, from) in bits.iter_mut().zip(mask.as_slice()) {
                *to = *from;
            }
        };
        if self.fresh {
            copy(&self.grammar.first_mask);
            return Ok(());
        }
        if self.parser.stopped() {
            return match self.parser.stop_reason().is_ok() {
                true => Ok(()),
                false => Err(self.parser.error_message().unwrap_or_default()),
            };
        }
        match self.parser.compute_mask() {
            Ok(mask) => copy(&mask),
            Err(_) if self.parser.stop_reason() == StopReason::NoExtensionBias => {}
            Err(e) => return Err(clean(&e)),
        }
        Ok(())
    }

    /// Fails when the token may not come next; the state is then of no use.
    pub fn consume(&mut self, token: u32) -> Result<(), String> {
        if self.parser.stopped() {
            return Err("the grammar has ended already".into());
        }
        self.fresh = false;
        let backtrack = self.parser.consume_token(token).map_err(|e| clean(&e))?;
        if backtrack != 0 {
            return Err("the grammar would take text back".into());
        }
        self.parser.check_stop().map(drop).map_err(|e| clean(&e))
    }

    pub fn rollback(&mut self, count: usize) -> Result<(), String> {
        self.parser.rollback(count).map_err(|e| clean(&e))?;
        self.fresh = self.parser.num_tokens() == 0;
        Ok(())
    }

    pub fn is_accepting(&mut self) -> bool {
        self.has_ended() || (!self.parser.stopped() && self.parser.is_accepting())
    }

    /// The text is complete and nothing can follow.
    pub fn has_ended(&self) -> bool {
        matches!(
            self.parser.stop_reason(),
            StopReason::NoExtension | StopReason::EndOfSentence
        )
    }
}

#[cfg(test)]
#[path = "grammar_tests.rs"]
mod tests;
