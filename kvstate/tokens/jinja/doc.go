// Package jinja renders chat templates as Python's Jinja does with the settings of Hugging
// Face's transformers (utils/chat_template_utils.py: trim_blocks, lstrip_blocks, loop
// controls, the generation tag, an immutable sandbox, and a tojson that is json.dumps). A
// render that is not known to be alike is an error, never another text: a function, an
// attribute or a type that this package does not know ends it, and so do the errors of Python.
//
// Mappings keep the order of the JSON they were read from. What is rendered is user input:
// JSON is bounded in depth and number of values, a render in steps and in output.
//
// Only kvstate/tokens imports it.
package jinja
