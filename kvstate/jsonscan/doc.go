// Package jsonscan finds where the values of a JSON text begin and end. It decodes
// nothing and copies nothing: code that edits, compares or forwards a part of a body does so
// with the bytes as they came. Where a value has to be decoded, encoding/json does it;
// where one field of a small answer is wanted, gjson.
//
// Check and CheckMembers accept what encoding/json accepts, and refuse texts that are nested
// more than MaxDepth deep. The others walk what they accepted, or a part of it, and do not
// look into strings again, which is three times as fast; given anything else they stop or
// yield parts that are no JSON, and never read outside of it.
//
// pd and kvstate/tokens import it; it imports nothing of ours.
package jsonscan
