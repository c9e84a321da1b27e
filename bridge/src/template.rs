//! A compiled chat template and its rendering: JSON in, text out, both bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::machinery::{self, CompiledTemplate, Instructions, TemplateConfig};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use crate::messages::{self, Wants};
use crate::sentry::{Known, KNOWN};
use crate::{environment, json, probe, python, rewrite, source};

const NAME: &str = "chat_template";
/// Longer than any template in use by two orders of magnitude (the longest seen has 30 KB).
const SOURCE_BYTES_MAX: usize = 4 << 20;

/// The longest probe of the templates in use takes about 3,000.
const PROBE_STEPS_MAX: u64 = 200_000;

pub enum Failure {
    Refused(String),
    Exhausted(String),
}

#[derive(Clone, Copy)]
pub struct Limits {
    pub steps_max: u64,
    pub output_bytes_max: usize,
}

pub struct Input<'a> {
    pub messages: &'a str,
    pub tools: &'a str,
    pub extra: &'a str,
    pub now: i64,
    pub add_generation_prompt: bool,
    pub normalize: bool,
}

pub struct Template {
    // Borrows from `_source`, so it is declared, and dropped, first.
    instructions: Instructions<'static>,
    _source: Arc<str>,
    environment: Environment<'static>,
    limits: Limits,
    bos_token: String,
    eos_token: String,
    wants: Wants,
}

/// "what went wrong (line 3)", with the innermost cause's text.
fn describe(error: &Error) -> String {
    let text = match error.detail() {
        Some(detail) => detail.to_string(),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{text} (line {line})"),
        None => text,
    }
}

/// Other names could not be looked up, except by the sentry, whose functions they could hide.
fn is_identifier(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

impl Template {
    pub fn compile(
        source: &str,
        bos_token: &str,
        eos_token: &str,
        limits: Limits,
    ) -> Result<Template, Failure> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(Failure::Refused(format!(
                "the template has {} bytes, at most {SOURCE_BYTES_MAX} are accepted",
                source.len()
            )));
        }
        let text: Arc<str> = source::prepare(source).map_err(Failure::Refused)?.into();
        // SAFETY: an Arc's bytes do not move, nobody has them mutably, and the Template keeps this
        // one until after its instructions are gone.
        let borrowed: &'static str = unsafe { &*std::ptr::from_ref::<str>(&text) };
        let config = TemplateConfig {
            syntax_config: environment::syntax(),
            default_auto_escape: Arc::new(|_| AutoEscape::None),
        };
        let compiled = CompiledTemplate::new(NAME, borrowed, &config)
            .map_err(|e| Failure::Refused(describe(&e)))?;
        let mut template = Template {
            instructions: rewrite::rewrite(&compiled.instructions)
                .map_err(|e| Failure::Refused(describe(&e)))?,
            _source: text,
            environment: environment::make(limits.steps_max.min(PROBE_STEPS_MAX)),
            limits,
            bos_token: bos_token.to_string(),
            eos_token: eos_token.to_string(),
            wants: Wants::default(),
        };
        template.wants = probe::probe(&template);
        template.environment.set_fuel(Some(limits.steps_max));
        Ok(template)
    }

    pub fn render(&self, input: &Input) -> Result<String, Failure> {
        let refused = Failure::Refused;
        let mut messages = json::parse(input.messages, "messages").map_err(refused)?;
        if input.normalize {
            messages::normalize(&mut messages, &self.wants).map_err(refused)?;
        } else if !messages.is_array() {
            return Err(refused("messages is not a list".into()));
        }
        let tools = match input.tools {
            "" => Json::Null,
            text => json::parse(text, "tools").map_err(refused)?,
        };
        if !(tools.is_null() || tools.is_array()) {
            return Err(refused("tools is not a list".into()));
        }
        let extra = match input.extra {
            "" => Json::Object(serde_json::Map::new()),
            text => json::parse(text, "the extra variables").map_err(refused)?,
        };
        let Json::Object(extra) = extra else {
            return Err(refused("the extra variables are not an object".into()));
        };
        self.render_parsed(&messages, &tools, &extra, input)
    }

    fn variables(
        &self,
        messages: &Json,
        tools: &Json,
        extra: &serde_json::Map<String, Json>,
        input: &Input,
    ) -> Result<Value, String> {
        let now = input.now;
        let mut known = Known::default();
        let strftime = Value::from_function(move |format: String| python::strftime(&format, now));
        let mut variables: Vec<(&str, Value)> = vec![
            ("strftime_now", strftime),
            ("documents", Value::from(())),
            ("bos_token", Value::from(self.bos_token.as_str())),
            ("eos_token", Value::from(self.eos_token.as_str())),
        ];
        for (name, value) in extra {
            if ["messages", "tools", "add_generation_prompt"].contains(&name.as_str()) {
                return Err(format!("the extra variables may not set {name}"));
            }
            if !is_identifier(name) {
                return Err(format!("{name:.40} is no name for a variable"));
            }
            variables.push((name.as_str(), json::to_value(value, &mut known)?));
        }
        // An empty list of tools is none, as for Hugging Face's callers.
        let no_tools = tools.as_array().is_some_and(|list| list.is_empty());
        let tools = if no_tools { &Json::Null } else { tools };
        variables.push(("messages", json::to_value(messages, &mut known)?));
        variables.push(("tools", json::to_value(tools, &mut known)?));
        variables.push((
            "add_generation_prompt",
            Value::from(input.add_generation_prompt),
        ));
        variables.push((KNOWN, Value::from_object(known)));
        Ok(Value::from_pairs(variables))
    }

    pub fn render_parsed(
        &self,
        messages: &Json,
        tools: &Json,
        extra: &serde_json::Map<String, Json>,
        input: &Input,
    ) -> Result<String, Failure> {
        let variables = self
            .variables(messages, tools, extra, input)
            .map_err(Failure::Refused)?;
        let mut output = String::new();
        let result = machinery::eval(
            &self.environment,
            &self.instructions,
            variables,
            &BTreeMap::new(),
            &mut machinery::make_string_output(&mut output),
            AutoEscape::None,
        )
        .map(drop);
        // While it grows the output is bounded by the steps, of which 64 bytes cost one.
        match result {
            Ok(()) if output.len() > self.limits.output_bytes_max => {
                Err(Failure::Exhausted(format!(
                    "the output passed its limit of {} bytes",
                    self.limits.output_bytes_max
                )))
            }
            Ok(()) => Ok(output),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(Failure::Exhausted(format!(
                "the work passed its limit of {} steps",
                self.limits.steps_max
            ))),
            Err(error) => Err(Failure::Refused(describe(&error))),
        }
    }
}
