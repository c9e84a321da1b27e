//! OpenAI's messages are looser than what templates expect, and templates differ. Before a
//! rendering, the text parts of a message become one string, and tool calls take the form that the
//! template understands (see probe.rs): `arguments` as JSON text or as an object, `content` beside
//! them null or empty.

use serde_json::{Map, Value as Json};

/// The forms of a tool call that a template renders rightly. A form that the client sent and the
/// template takes is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    pub text_arguments: bool,
    pub object_arguments: bool,
    pub null_content: bool,
    pub empty_content: bool,
}

impl Default for Wants {
    fn default() -> Wants {
        Wants {
            text_arguments: true,
            object_arguments: true,
            null_content: true,
            empty_content: true,
        }
    }
}

pub fn normalize(messages: &mut Json, wants: &Wants) -> Result<(), String> {
    let Json::Array(list) = messages else {
        return Err("messages is not a list".into());
    };
    for (index, message) in list.iter_mut().enumerate() {
        let Json::Object(message) = message else {
            return Err(format!("messages[{index}] is not an object"));
        };
        normalize_message(message, wants).map_err(|why| format!("messages[{index}]: {why}"))?;
    }
    Ok(())
}

fn normalize_message(message: &mut Map<String, Json>, wants: &Wants) -> Result<(), String> {
    if let Some(Json::Array(parts)) = message.get("content") {
        let text = join_parts(parts)?;
        message.insert("content".into(), Json::String(text));
    }
    // Newer clients say `reasoning`, templates say `reasoning_content`.
    if let (Some(Json::String(reasoning)), None) =
        (message.get("reasoning"), message.get("reasoning_content"))
    {
        let reasoning = reasoning.clone();
        message.insert("reasoning_content".into(), Json::String(reasoning));
    }
    match message.get("tool_calls") {
        Some(Json::Array(calls)) if !calls.is_empty() => {}
        Some(Json::Array(_) | Json::Null) | None => {
            message.shift_remove("tool_calls");
            if matches!(message.get("content"), None | Some(Json::Null)) {
                message.insert("content".into(), Json::String(String::new()));
            }
            return Ok(());
        }
        Some(_) => return Err("tool_calls is not a list".into()),
    }
    normalize_call_content(message, wants);
    if let Some(Json::Array(calls)) = message.get_mut("tool_calls") {
        for call in calls {
            normalize_call(call, wants)?;
        }
    }
    Ok(())
}

fn join_parts(parts: &[Json]) -> Result<String, String> {
    let mut text = String::new();
    for part in parts {
        match part {
            Json::String(piece) => text.push_str(piece),
            Json::Object(part) => text.push_str(part_text(part)?),
            _ => return Err("a content part is neither text nor an object".into()),
        }
    }
    Ok(text)
}

fn part_text(part: &Map<String, Json>) -> Result<&str, String> {
    let kind = part.get("type").and_then(Json::as_str).unwrap_or("text");
    let field = match kind {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        _ => {
            return Err(format!(
                "content parts of type {kind:.40} are not supported"
            ))
        }
    };
    part.get(field)
        .and_then(Json::as_str)
        .ok_or_else(|| format!("a content part of type {kind} lacks its {field}"))
}

fn normalize_call_content(message: &mut Map<String, Json>, wants: &Wants) {
    let absent = matches!(message.get("content"), None | Some(Json::Null));
    let empty = message.get("content").and_then(Json::as_str) == Some("");
    if absent {
        let null = wants.null_content || !wants.empty_content;
        let content = if null {
            Json::Null
        } else {
            Json::String(String::new())
        };
        message.insert("content".into(), content);
    } else if empty && !wants.empty_content && wants.null_content {
        message.insert("content".into(), Json::Null);
    }
}

fn normalize_call(call: &mut Json, wants: &Wants) -> Result<(), String> {
    // Some templates and clients leave the `function` level out.
    let call = match call {
        Json::Object(call) => match call.get("function") {
            Some(Json::Object(_)) => call.get_mut("function").and_then(Json::as_object_mut),
            _ => Some(call),
        },
        _ => None,
    };
    let Some(function) = call else {
        return Err("a tool call is not an object".into());
    };
    match function.get("arguments") {
        Some(Json::String(text)) if !wants.text_arguments && wants.object_arguments => {
            let arguments = parse_arguments(text)?;
            function.insert("arguments".into(), arguments);
        }
        Some(arguments @ (Json::Object(_) | Json::Array(_)))
            if !wants.object_arguments && wants.text_arguments =>
        {
            let text = spaced_json(arguments);
            function.insert("arguments".into(), Json::String(text));
        }
        _ => {}
    }
    Ok(())
}

fn parse_arguments(text: &str) -> Result<Json, String> {
    if text.trim().is_empty() {
        return Ok(Json::Object(Map::new()));
    }
    match serde_json::from_str(text) {
        Ok(arguments @ Json::Object(_)) => Ok(arguments),
        Ok(_) => Err("the arguments of a tool call are not a JSON object".into()),
        Err(e) => Err(format!(
            "the arguments of a tool call are not valid JSON: {e}"
        )),
    }
}

/// JSON with ", " and ": ", as models see it in training. Depth is bounded by the parser.
fn spaced_json(json: &Json) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match json {
        Json::Array(items) => format!("[{}]", list(items.iter().map(spaced_json).collect())),
        Json::Object(map) => {
            let pair = |(key, value): (&String, &Json)| {
                format!("{}: {}", Json::String(key.clone()), spaced_json(value))
            };
            format!("{{{}}}", list(map.iter().map(pair).collect()))
        }
        scalar => scalar.to_string(),
    }
}
