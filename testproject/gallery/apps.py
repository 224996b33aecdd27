from django.apps import AppConfig


class GalleryConfig(AppConfig):
    name = "testproject.gallery"
