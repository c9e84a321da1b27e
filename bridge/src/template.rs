//! A compiled chat template and its rendering: JSON in, text out, both bounded.

use std::io;

use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use crate::messages::{self, Wants};
use crate::{environment, generation, json, probe, python};

const NAME: &str = "chat_template";
/// Longer than any template in use by two orders of magnitude (the longest seen has 30 KB).
const SOURCE_BYTES_MAX: usize = 4 << 20;

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
    environment: Environment<'static>,
    limits: Limits,
    bos_token: String,
    eos_token: String,
    wants: Wants,
}

/// Collects output up to a size, then fails.
struct BoundedOutput {
    bytes: Vec<u8>,
    bytes_max: usize,
    overflowed: bool,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() > self.bytes_max - self.bytes.len() {
            self.overflowed = true;
            return Err(io::Error::other("the output limit was reached"));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
        let mut environment = environment::make(limits.steps_max);
        environment
            .add_template_owned(NAME, generation::rewrite(source).into_owned())
            .map_err(|e| Failure::Refused(describe(&e)))?;
        let mut template = Template {
            environment,
            limits,
            bos_token: bos_token.to_string(),
            eos_token: eos_token.to_string(),
            wants: Wants::default(),
        };
        template.wants = probe::probe(&template);
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
            variables.push((name.as_str(), json::to_value(value)?));
        }
        // An empty list of tools is none, as for Hugging Face's callers.
        let no_tools = tools.as_array().is_some_and(|list| list.is_empty());
        let tools = if no_tools { &Json::Null } else { tools };
        variables.push(("messages", json::to_value(messages)?));
        variables.push(("tools", json::to_value(tools)?));
        variables.push((
            "add_generation_prompt",
            Value::from(input.add_generation_prompt),
        ));
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
        let mut output = BoundedOutput {
            bytes: Vec::new(),
            bytes_max: self.limits.output_bytes_max,
            overflowed: false,
        };
        let result = self.environment.get_template(NAME).and_then(|template| {
            template
                .render_captured_to(variables, &mut output)
                .map(drop)
        });
        match result {
            Ok(()) => String::from_utf8(output.bytes)
                .map_err(|_| Failure::Refused("the output is not UTF-8".into())),
            Err(_) if output.overflowed => Err(Failure::Exhausted(format!(
                "the output passed its limit of {} bytes",
                self.limits.output_bytes_max
            ))),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(Failure::Exhausted(format!(
                "the work passed its limit of {} steps",
                self.limits.steps_max
            ))),
            Err(error) => Err(Failure::Refused(describe(&error))),
        }
    }
}
