package messages

import "github.com/tandem-gateway/tandem/pd/api"

// imagePart is the part of a chat that SGLang makes of an image block, in a turn of the user's or a tool's result.
func (c *conversation) imagePart(block api.Body) (api.Value, error) {
	if c.engine.Name != SGLang {
		return nil, inexact("an image, which not every version of vLLM reads alike")
	}
	if err := onlyFields(block, "an image", "type", "source", "cache_control"); err != nil {
		return nil, err
	}
	source, ok := block.Get("source").Object()
	if !ok {
		return nil, inexact("an image whose source is not an object in which no field appears twice")
	}
	url, err := imageURL(source)
	if err != nil {
		return nil, err
	}
	return api.Body{}.With(
		api.Edit{Key: "type", Value: []byte(`"image_url"`)},
		api.Edit{Key: "image_url", Value: api.Body{}.With(api.Edit{Key: "url", Value: url}).Bytes()}).Bytes(), nil
}

// imageURL is the address of an image, or the image itself as a data: URL.
func imageURL(source api.Body) (api.Value, error) {
	switch kind, _ := source.Get("type").String(); kind {
	case "base64":
		if err := onlyFields(source, "an image's source", "type", "media_type", "data"); err != nil {
			return nil, err
		}
		media, data := source.Get("media_type"), source.Get("data")
		if !isFilled(media) || !isFilled(data) {
			return nil, inexact("an image without a media_type or data")
		}
		return joinTexts([]api.Value{api.Value(`"data:"`), media, api.Value(`";base64,"`), data}, ""), nil
	case "url":
		if err := onlyFields(source, "an image's source", "type", "url"); err != nil {
			return nil, err
		}
		if url := source.Get("url"); isFilled(url) {
			return url, nil
		}
	}
	return nil, inexact("an image that is neither sent (base64) nor at a URL")
}
